"""The page of ``attention_int8``."""

from __future__ import annotations

from typing import Any

from fastflow.bench.research.default_page import table


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    gate, machine = result["gate"], result["machine"]
    built = "built" if result["built"] else "not built"
    rows = []
    for row in result["times"]:
        flat, rests, whole = row["attention"], row["attention, most on one token"], row["whole"]
        rows.append([
            f"{row['model']}, heads of {row['head']}", f"{row['texts']} x {row['tokens']}",
            f"{100 * row['share']:.0f} %", f"{flat['bytes'] / flat['bfloat16']:.2f}",
            f"{rests['bytes'] / rests['bfloat16']:.2f}", f"{whole['bfloat16']:.1f}", f"{whole['bytes']:.1f}",
            f"{100 * (1 - whole['bytes'] / whole['bfloat16']):+.1f} %",
        ])  # fmt: skip
    heads = ["encoder", "texts x tokens", "attention's share", "attention, ratio", "the same, most on one token",
             "bfloat16, ms", "bytes, ms", "time saved"]  # fmt: skip
    quality = [
        [name, kind, f"{q['spearman']:.2f}", *(f"{value:.5f}" for value in (*q["heads"], *q["long texts"]))]
        for name, kinds in result["quality"].items() for kind, q in kinds.items()
    ]  # fmt: skip
    columns = [
        "encoder",
        "attention",
        f"Spearman on {result['pairs']}",
        "heads, 0.1 %",
        "median",
        "long texts, least",
        "median",
    ]
    return f"""# Attention's products in bytes, in int8

Made by

    {result["command"]}

{machine["processor"]}, processor time of one thread beside other work; medians of runs that take turns with bfloat16.

**The gate**, written down before: one of the two shapes saves at least {100 * gate["gain"]:.0f} % of the encoder's
time at 512 tokens, and no encoder loses more than {gate["loss"]} points of Spearman. **The verdict**: up to
{100 * max(gate["gains"]):.1f} % saved and at most {max(gate["losses"]):.2f} points lost, hence {built}.

## Time

Random weights in the shapes of the encoders. *Attention's share*: of the encoder's time, with attention in bfloat16.
*Attention, ratio*: time in bytes over that in bfloat16 of one text's heads, with rounding and packing. *Most on one
token*: its scores are far above the others, as those of a separator often are in trained encoders. Below 64 tokens the
encoder attends in bfloat16, for packing costs what the products save.

{table(heads, rows)}

## Quality

The compiled attention of texts of every length, everything else in NumPy's float32. *Heads*: cosine of a token's result
in one head with float64, of queries, keys and values in long texts: of the worst in a thousand, and the median. *Long
texts*: cosine of the embeddings of joined sentences, cut at the encoder's maximum length, with those of float32.

{table(columns, quality)}
"""
