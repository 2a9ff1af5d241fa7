"""Which units of a network flow where, which go together, and how layers are cut down to some.

`follow` runs the model once and notes which units flow where; `coupled` tells from that which
connections go with each unit; `surgery` cuts the layers. Each kind of operation
(`network.operations`) has a rule, in layers.py if it is cut and in rules.py if it is not; the table
is in follow.py. An operation without a rule keeps whatever flows into it.
"""
