"""Average two tables of one vocabulary, the second turned to the first by Procrustes: FIRST SECOND SENTENCES.json OUT."""

import json
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from fastflow import Runtime
from fastflow.model.static.table import open_table
from fastflow.model.static.write import write_static

paths = [Path(each) for each in sys.argv[1:3]]
texts = [text for own in json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")).values() for text in own[:400]]
tokenizer = Tokenizer.from_file(str(paths[1] / "tokenizer.json"))
tables = [open_table(path) for path in paths]
rows = [np.array(table.vectors(np.arange(table.vocabulary), np.float32)) for table in tables]
first, second = (Runtime(str(path)).encode(texts) for path in paths)
left, _, right = np.linalg.svd(second.T @ first)
bags = [[i for i in each.ids if i > 1] for each in tokenizer.encode_batch(texts[::5], add_special_tokens=False)]
sizes = [np.mean([np.linalg.norm(own[bag].mean(axis=0)) for bag in bags if bag]) for own in rows]
joined = rows[0] / sizes[0] + rows[1] @ (left @ right) / sizes[1]
joined[:2] = 0
write_static(Path(sys.argv[4]), tokenizer, joined.astype(np.float32), dtype="int8", max_length=256, name="joined")
