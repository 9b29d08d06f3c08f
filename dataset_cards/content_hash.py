import hashlib

import numpy as np


def content_hash(dataset):
    """The content hash of a loaded split (not streamed, not filtered): values only, whatever the cut into files and chunks."""
    whole = {}
    for name in sorted(dataset.column_names):
        values, lengths = hashlib.sha256(), hashlib.sha256()
        for chunk in dataset.data.column(name).chunks:
            if name != "example_id":
                lengths.update(np.diff(chunk.offsets.to_numpy()).astype("<i8").tobytes())
                chunk = chunk.flatten()
            flat = chunk.to_numpy(zero_copy_only=False)
            values.update(flat.astype(flat.dtype.newbyteorder("<")).tobytes())
        whole[name] = values.hexdigest() + lengths.hexdigest()
    return hashlib.sha256("".join(whole.values()).encode()).hexdigest()
