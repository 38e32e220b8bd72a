"""The messages between our Python and the program `plimsoll`: names, fields, and the version of both.

The program's side is `src/protocol/mod.rs`; `tests/protocol/messages.jsonl` has a recorded message of each kind, which
the tests of both sides read. A message is a JSON file in a folder that a variable names. A change of a name or a
field is a new version.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes milliseconds, which every process of the program would pay
if TYPE_CHECKING:
    from typing import Any, TypedDict
else:
    TypedDict = dict

VERSION = 1

# Files without contents in the folder for reports: whose presence is the message. Before the dot is the process's number.
STOP = "stop"  # from the program: every process is to exit
STARTED = "started"  # PID.started: the process uses CUDA
DONE = "done"  # PID.done: its last report is written

# The same in the folder for requests of `plan`.
LATE = "late"  # from the program: while it is there, all requests but those of the GPU's size are given up
END = "end"  # from the program: the process that serves is to exit
EXPIRED = "expired"  # the status of a fork that was killed because it took too long
UNABLE = "unable"  # that of a request that a fork cannot fulfil

# The same in the folder for answers of `run`.
LOADED = "loaded"  # PID.loaded: our Python is in the process
APPLIED = "applied"  # PID.applied: so are the techniques


class Place(TypedDict):
    """A line of source."""

    file: str
    line: int
    text: str


class Sink(TypedDict):
    """A line where a value read from the GPU decides something; the kind is size, branch or unknown."""

    kind: str
    file: str
    line: int
    text: str


class Read(TypedDict):
    """The reads of the device at one line, from one call stack."""

    file: str | None  # the innermost line outside packages; None in a backward pass
    line: int | None
    function: str | None
    text: str
    via: Place | None  # the line that read, if it is in a package
    operator: str | None
    fate: str  # shown, size, branch or unknown
    sinks: list[Sink]
    count: int
    assumed: Any  # the value from --assume, if it was used
    taken: tuple[Any, Any] | None  # without --assume: the least and the largest value that the program got, unless zero
    generates: bool
    even: bool


class Peaks(TypedDict):
    """The peaks of one device, and their steps, from 1."""

    device: int
    gpu: int
    allocated_bytes: int
    allocated_step: int
    reserved_bytes: int
    reserved_step: int
    grows_by: float


class Thrown(TypedDict):
    """The exception that ended a process, and the innermost line outside packages."""

    kind: str
    text: str
    file: str | None
    line: int | None
    reads: bool
    technique: str | None  # the one that raised it


class GrowingSteps(TypedDict):
    """A device whose memory grew in the latest steps: by `bytes` in one of `every` steps."""

    device: int
    bytes: int
    every: int
    times: int  # how often it was seen to grow
    steps: int
    total: int | None


class Late(TypedDict):
    """Statements of the training loop that did not run and may matter: their test in the source, and the number of steps after which
    they have run.
    """

    file: str
    line: int
    end: int
    text: str
    steps: int | None


class Holder(TypedDict):
    """What keeps memory that grew, or that was there when memory ran out."""

    device: int
    kind: str  # as of `plimsoll.holders`
    text: str
    tensors: int
    bytes: int


class GrowingBatches(TypedDict):
    """A device whose memory grew from batch to batch."""

    device: int
    bytes: int
    first_bytes: int
    last_bytes: int


class CutLoop(TypedDict):
    """A loop over a DataLoader after the steps that did not get all of its batches."""

    file: str | None
    line: int | None
    given: int
    made: int
    total: int | None
    left: int
    grows: list[GrowingBatches]
    is_cut: bool
    ended_us: int


class Batches(TypedDict):
    """Batches of the training differ in size, and only the first ones were looked at."""

    made: int
    total: int | None


class Warning(TypedDict):
    """What a run without values cannot show."""

    place: tuple[str, int] | None
    what: str
    most: int  # the value of --assume for the line that shows the most
    bytes: int


class Wrote(TypedDict):
    """A file that the program would have written or changed."""

    path: str
    bytes: int


class Graph(TypedDict):
    """Graphs of forward passes in evaluation that no backward pass uses."""

    file: str
    line: int
    bytes: int
    calls: int


class Waste(TypedDict):
    """Memory that is live at the peak and not needed there, and the line that frees it: `text` after line `after` of the file."""

    kind: str  # del, shape, view, gradients or states
    name: str
    file: str
    line: int  # where the name was assigned
    bytes: int
    after: int
    indent: str
    text: str


class Fall(TypedDict):
    """Memory of the training that is gone for good: what, and the last step that saw it."""

    text: str
    bytes: int
    step: int


class CompileCaches(TypedDict):
    """The compile caches that a process would use again."""

    autograd: bool
    graphs: bool
    timings: bool


class Refusal(TypedDict):
    """The technique that cannot be applied, and why."""

    technique: str
    reason: str


class Report(TypedDict):
    """PID.json in the folder for reports: one process of `predict` that imported torch."""

    protocol: int
    pid: int
    rank: int | None
    alone: bool
    command: list[str]
    state: str  # running, ended, stopped, failed, refused or expired
    torch: str
    cuda: str | None
    standin: bool
    allocator: str
    started: bool
    steps: int
    failures: int
    status: int
    failed_step: int
    retries: int
    devices: list[Peaks]
    cudnn_search: bool
    outside_bytes: int | None
    compile_caches: CompileCaches
    compiles: bool
    libraries: list[str]
    error: Thrown | None
    reads: list[Read]
    problems: list[str]
    cut: bool
    went_on: bool
    ended: bool
    unseen: list[Place]
    late: list[Late]
    after_error: Thrown | None
    growth: list[GrowingSteps]
    batches: Batches | None
    holders: list[Holder]
    loops: list[CutLoop]
    grew: bool
    warnings: list[Warning]
    graphs: list[Graph]
    falls: list[Fall]
    waste: list[Waste]  # at the highest peak
    trains: bool
    captures: int
    techniques: list[dict[str, Any]]  # what each did: name, applied, detail, lines, and more of some
    refusal: Refusal | None
    written: list[Wrote]  # by a fork that serves a trial, which has a view of its own
    hosts: list[str]  # that it contacted


class Request(TypedDict):
    """N.json in the folder for requests: a set of techniques to try in a fork."""

    set: dict[str, Any]
    reports: str
    shared: str
    view: str
    limit_s: float
    limit_bytes: int | None
    memory_bytes: int | None
    records: bool
    settles: bool
    stops: bool
    shows: bool
    ranks: int
    alone: bool


class Done(TypedDict):
    """N.done in the folder for requests: how the fork ended, and whether another one ran beside it."""

    status: int | str  # an exit status, EXPIRED or UNABLE
    beside: bool


class Cover(TypedDict):
    """A folder of the view, with the program's private files (`upper`) above those of the disk (`lower`)."""

    place: str
    lower: str
    upper: str


class View(TypedDict):
    """view.json beside the folder for reports: the view of the file system, for forks."""

    privileged: bool
    session: str
    scratch_bytes: int
    covers: list[Cover]


class Measured(TypedDict):
    """What a process of `run --check` measured, for `run --measured`."""

    device: int
    allocated_bytes: int
    reserved_bytes: int
    snapshot: str | None
