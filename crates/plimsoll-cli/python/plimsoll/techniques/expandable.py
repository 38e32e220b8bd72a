# Expandable segments: the allocator maps pages into a few growing segments, which fragment less. The same numbers.


class Expandable:
    name = "expandable"

    def __init__(self, value):
        pass

    def begin(self):
        import os

        # PyTorch reads them when it first uses CUDA. The launcher has set them, except for a process that was forked for this set.
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            own = os.environ.get(name) or os.environ.get("PYTORCH_ALLOC_CONF") or ""
            if "expandable_segments:True" not in own:
                os.environ[name] = f"{own},expandable_segments:True".lstrip(",")

    def report(self):
        return dict(
            applied=True,
            detail="",
            lines=["# before Python starts: export PYTORCH_ALLOC_CONF=expandable_segments:True"],
        )
