"""The columns of a recording as Arrow types."""

from __future__ import annotations

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("labels", pa.map_(pa.string(), pa.string())),
        ("group", pa.int32()),
        ("t", pa.list_(pa.int64())),
        ("seq", pa.list_(pa.int64())),
        ("v", pa.list_(pa.float64())),
        ("body", pa.string()),
    ]
)
