"""Records what llama.cpp's own llama-imatrix collects from the tiny model.

    cd tests && python -m oracle.stock_imatrix LLAMA_IMATRIX goldens/imatrix_stock.json

Of every matrix the count and some of the sums are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from oracle.stock_quantize import write_f16_bundle

CHUNK_SIZE = 128
COLUMNS = slice(None, None, 32)
MADE_BY = {
    "tool": "llama-imatrix of llama.cpp 0c1e570, the source in llama-cpp-python 0.3.36",
    "command": f"llama-imatrix -m F16.gguf -f text -o imatrix.gguf -c {CHUNK_SIZE} -b {CHUNK_SIZE} "
    f"-ub {CHUNK_SIZE} -t 1 --no-ppl",
    "recorded": "python -m oracle.stock_imatrix LLAMA_IMATRIX goldens/imatrix_stock.json",
}
PLACES = [
    (first, second, third)
    for first in ("red", "old", "late")
    for second in ("ship", "lamp", "door")
    for third in ("sea", "hill", "night")
]
TEXT = "\n\n".join(
    f"The {first} {second} is {n} steps from the {third}, and {n * n} from anything else."
    for n, (first, second, third) in enumerate(PLACES)
)


def main() -> None:
    from phi4mm.quantize.imatrix_file import read_imatrix

    tool, out = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_f16_bundle(folder)
        text, result = folder / "text.txt", folder / "imatrix.gguf"
        text.write_text(TEXT, encoding="utf-8")
        size = str(CHUNK_SIZE)
        flags = ["-c", size, "-b", size, "-ub", size, "-t", "1", "--no-ppl"]
        command = [tool, "-m", str(model), "-f", str(text), "-o", str(result), *flags]
        subprocess.run(command, check=True, capture_output=True)
        imatrix = read_imatrix(result)
    sums = {n: [s.count, s.squares[COLUMNS].tolist()] for n, s in sorted(imatrix.sums.items())}
    golden = {"made_by": MADE_BY, "n_chunks": imatrix.n_chunks, "sums": sums}
    Path(out).write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
