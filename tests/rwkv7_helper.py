"""RWKV-7's layers beyond the first, called as the recordings call a layer. Imports fla."""

from fla.layers.rwkv7 import RWKV7Attention


class LaterLayer(RWKV7Attention):
    """With its own input, reversed, for the values of the first layer."""

    def forward(self, x):
        """(B, T, D) -> (B, T, D), ..."""
        return super().forward(x, v_first=x.flip(-1))
