"""The version, read from the installed distribution."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("snip-prune")
except PackageNotFoundError:  # run from a source tree
    __version__ = "0+source"
