# The process that serves trials of `plan`, with children that only sleep.

import json
import os
import subprocess
import sys
import time

PROGRAM = """
import os, sys, time
from plimsoll._predict import serve

class Watch:
    state = ""
    def leave(self, code):
        os._exit(code)

class Sleeps(serve.Serve):
    def __init__(self, folder):
        self.folder, self.watch = folder, Watch()
        self.stop = os.path.join(os.environ["PLIMSOLL_PREDICT_FOLDER"], "stop")
    def fork(self):
        return os.fork()
    def begin(self, request):
        open(request["reports"], "w").close()
        time.sleep(request["set"]["seconds"])
        os._exit(0)

Sleeps(sys.argv[1]).requests()
"""


def until(condition):
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < 60
        time.sleep(0.005)


def test_after_requests_were_given_up_others_are_answered(tmp_path):
    folder = tmp_path / "plan"
    folder.mkdir()

    def ask(number, seconds, memory_bytes=None):
        request = dict(set=dict(seconds=seconds), limit_s=600, memory_bytes=memory_bytes, alone=False)
        request.update(view=str(tmp_path / f"{number}.view"), reports=str(tmp_path / f"{number}.begun"))
        (folder / "request").write_text(json.dumps(request))
        os.replace(folder / "request", folder / f"{number}.json")

    def answer(number):
        done = folder / f"{number}.done"
        until(done.exists)
        return json.loads(done.read_text())["status"]

    environment = dict(os.environ, PLIMSOLL_PREDICT_FOLDER=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], env=environment)
    try:
        ask(0, 0)
        assert answer(0) == 0
        # There are more requests than can run concurrently: the last ones wait.
        for number in range(1, 9):
            ask(number, 600)
        until((tmp_path / "1.begun").exists)
        (folder / "late").write_text("9")
        assert answer(1) == "expired"
        # At the same time, a trial at the GPU's size is requested.
        ask(9, 0, memory_bytes=1 << 30)
        assert answer(9) == 0
        assert not (tmp_path / "8.begun").exists()
        # Later requests are not given up.
        ask(10, 0)
        assert answer(10) == 0
    finally:
        (folder / "end").touch()
        assert process.wait(60) == 0
