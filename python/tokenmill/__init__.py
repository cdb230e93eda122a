"""tokenmill: raw text shards to packed blocks of tokens, tokenized on the fly, resumed bit for bit.

>>> loader = tokenmill.Loader("pretrain.toml", batch_size=8)
>>> for batch in loader:
...     batch["input_ids"]          # int64 [8, block_size]
>>> state = loader.state_dict()     # positions, no data

See :class:`Loader`, and :mod:`tokenmill.torch` for PyTorch's data loaders and trainers.
"""

from ._error import Error
from ._loader import Loader
from ._state import merge_states
from ._tokenmill import __version__

__all__ = ["Error", "Loader", "__version__", "merge_states"]
