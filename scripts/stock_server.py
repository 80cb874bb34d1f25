"""llama.cpp's own server, from the wheel that carries libllama, for comparisons.

    python scripts/stock_server.py DECODER -t THREADS           # until the standard input ends
    python scripts/stock_server.py DECODER -t THREADS --once    # one token of a short prompt

It imports little, so that the time it takes to start is llama.cpp's.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys

import xllamacpp


def main() -> None:
    """Serve, or answer once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("decoder")
    parser.add_argument("-t", "--threads", type=int, required=True)
    parser.add_argument("-c", "--ctx-size", type=int, default=4096, help="of all slots together")
    parser.add_argument("-np", "--parallel", type=int, default=1, metavar="SLOTS")
    parser.add_argument("--port", type=int, default=0, help="0 for any that is free")
    parser.add_argument("--once", action="store_true")
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.decoder
    params.n_ctx = args.ctx_size
    params.n_batch = params.n_ubatch = 512
    params.n_parallel = args.parallel
    params.kv_unified = params.ui = False
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.port, params.warmup, params.verbosity = args.port, False, 0
    server = xllamacpp.Server(params)
    if not args.once:
        print(server.listening_address, flush=True)
        sys.stdin.read()
        return
    connection = http.client.HTTPConnection(server.listening_address.removeprefix("http://"))
    body = json.dumps({"prompt": "Hi", "n_predict": 1, "temperature": 0})
    connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
    print(connection.getresponse().read().decode())


if __name__ == "__main__":
    main()
