# Which requests of the recorded history have a Python stack. A stack takes the host 1 to 4 µs: nothing where the GPU bounds the
# step, but a sixth of a step of small kernels.
#
# At first all have one. After FIRST steps, windows of steps with and without stacks alternate. If those with stacks are longer by
# more than MOST, only one step in EVERY has stacks from then on, and what runs after a call of `eval`: an evaluation may need more
# memory than the steps before it.

import time

FIRST = 20  # steps
WINDOW, WINDOWS = 6, 6  # steps of a window, and windows
MOST = 0.04
EVERY = 16


class Stacks:
    def __init__(self, torch, record):
        self.record = record  # called with whether requests get stacks
        self.count, self.before = 0, None
        self.times = {True: [], False: []}
        self.are_on, self.are_sampled = True, False
        kind, stacks = torch.nn.Module, self
        original = kind.eval

        def eval(self):
            stacks.switch(True)
            return original(self)

        eval.__wrapped__ = original
        kind.eval = eval

    def switch(self, on):
        if on != self.are_on:
            self.are_on = on
            self.record(on)

    def stepped(self):
        # After each step of the optimizers.
        now, before = time.perf_counter(), self.before
        self.before, self.count = now, self.count + 1
        probed = self.count - FIRST - 1
        if self.are_sampled:
            self.switch(self.count % EVERY == 0)
        elif 0 <= probed < WINDOW * WINDOWS:
            # The first step of a window pays for the switch.
            if probed % WINDOW and before is not None:
                self.times[self.are_on].append(now - before)
            self.switch((probed + 1) // WINDOW % 2 == 0)
        elif probed == WINDOW * WINDOWS:
            self.are_sampled = self.is_slow()
            self.switch(not self.are_sampled)

    def is_slow(self):
        on, off = (sorted(self.times[it])[len(self.times[it]) // 2] if self.times[it] else 0.0 for it in (True, False))
        return on > off * (1 + MOST)
