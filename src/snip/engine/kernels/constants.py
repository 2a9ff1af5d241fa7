"""Numbers that both sides of the border use by name.

Python needs some of them where there is no library, so they stand here once more; a library whose
enums (SNIP_ENUM in native/) have other values is refused when it is loaded.
"""

DONE, REFUSED, NO_MEMORY, NO_THREADS, FAILED = range(5)  # how a kernel ended
MOST_LAYERS, MOST_LANES, MOST_POSITIONS = 64, 64, 255
RELU, ACCUMULATE, TURNED = 1, 2, 4  # flags of a linear product
SAMPLES = 64  # that a linear layer on plain activations takes at a time
FIRST, LAST = 1, 2  # places of a segment among those of its output
LINEAR, CONV, MAX_POOL, RECTIFIER = range(4)  # kinds of layers of a straight network
