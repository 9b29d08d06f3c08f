"""Layers of fla that need more than fla has for some device, and layers of our own. Import one and fla, if it is fla's, is imported."""
