"""A server with vLLM's endpoints; VLLM_STAND_IN names the defect that it shows."""

import argparse
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DEFECT = os.environ.get("VLLM_STAND_IN", "")
PAGES = {
    "/health": "",
    "/version": '{"version": "0.0.0"}',
    "/v1/models": '{"data": []}',
    "/metrics": 'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",'
    'num_gpu_blocks="8"} 1.0\nvllm:prefix_cache_hits_total{engine="0"} 3.0\n',
}
answered = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer(200 if self.path in PAGES else 404, PAGES.get(self.path, ""))

    def do_POST(self):
        global answered
        answered += 1
        if DEFECT == "dies-in-load" and answered > 7:
            print("EngineDeadError: the engine is dead", flush=True)
            os._exit(1)
        self._answer(500 if DEFECT == "fails-half" and answered % 2 else 200, "")
        if DEFECT == "dies-at-end" and answered == 6:
            self.wfile.flush()
            os._exit(1)

    def _answer(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
port = parser.parse_known_args()[0].port
if DEFECT == "dies-at-start":
    sys.exit("unrecognized arguments: --no-such-flag")
if DEFECT == "out-of-memory":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
subprocess.Popen(["sleep", "600"], start_new_session=True)  # as an engine process is
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
