"""The messages between our Python and the program `plimsoll`: names, fields, and the version of both.

The program's side is `src/protocol/mod.rs`; `tests/protocol/messages.jsonl` has a recorded message of each kind, which
the tests of both sides read. A message is a JSON file in a folder named by an environment variable. Whenever a name or
a field changes, the version changes too.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would delay every process by milliseconds
if TYPE_CHECKING:
    from typing import Any, TypedDict
else:
    TypedDict = dict

VERSION = 1

# Empty files in the folder for reports, whose existence is the message. PID is the process ID.
STOP = "stop"  # from the program: every process must exit
STARTED = "started"  # PID.started: the process uses CUDA
DONE = "done"  # PID.done: its last report is written

# Files in the folder for requests of `plan`.
LATE = "late"  # from the program, a number: requests with lower numbers are abandoned, except at the GPU's size
END = "end"  # from the program: the serving process must exit
EXPIRED = "expired"  # the status of a fork that was killed because it took too long
UNABLE = "unable"  # the status of a request that a fork cannot fulfil

# Empty files in the folder for answers of `run`.
LOADED = "loaded"  # PID.loaded: the process has loaded our Python
APPLIED = "applied"  # PID.applied: the techniques are applied


class Place(TypedDict):
    """A line of source."""

    file: str
    line: int
    text: str


class Break(TypedDict):
    """A statement that ends the training loop depending on a value that is unknown, and whether it has ended it."""

    file: str
    line: int
    text: str
    is_early: bool


class Sink(TypedDict):
    """A line where a value read from the GPU determines something. The kind is size, branch or unknown."""

    kind: str
    file: str
    line: int
    text: str


class Read(TypedDict):
    """The reads from the device at one line, with one call stack."""

    file: str | None  # the innermost line outside packages; None in a backward pass
    line: int | None
    function: str | None
    text: str
    via: Place | None  # the line that read the value, if it is in a package
    operator: str | None
    fate: str  # shown, size, branch or unknown
    sinks: list[Sink]
    count: int
    assumed: Any  # the value from --assume, if it was used
    # Without --assume: the smallest and largest value that the program got, unless both are zero.
    taken: tuple[Any, Any] | None
    generates: bool
    even: bool


class Peaks(TypedDict):
    """The peaks of one device, and the steps of the peaks, counted from 1."""

    device: int
    gpu: int
    allocated_bytes: int
    allocated_step: int
    reserved_bytes: int
    reserved_step: int
    grows_by: float
    requested_bytes: int  # bytes that the process had requested from CUDA when its memory on the device peaked
    outside_bytes: int  # bytes that were used outside these requests at that moment


class Outside(TypedDict):
    """Memory that a process uses on a device in addition to what it requests, at its peak on the device."""

    device: int
    owner: str
    part: str  # empty if the owner has only one part
    bytes: int
    basis: str  # measured, derived, given or assumed
    call: str  # the call that first allocated it


class Refused(TypedDict):
    """An `Outside` row that did not fit, and the bytes that were free."""

    row: Outside
    free_bytes: int


class Thrown(TypedDict):
    """The exception that ended a process, and the innermost line outside packages that it passed."""

    kind: str
    text: str
    file: str | None
    line: int | None
    reads: bool
    technique: str | None  # the technique that raised the exception


class GrowingSteps(TypedDict):
    """A device whose memory grew in the latest steps: by `bytes` in one of `every` steps."""

    device: int
    bytes: int
    every: int
    times: int  # how often memory was seen to grow
    steps: int
    total: int | None
    resets: bool  # whether the memory is freed after `total` steps, in each round of an outer loop
    quickens: int  # the bytes by which each increase is larger than the previous one
    peak_bytes: int  # the bytes by which the peak rises per step; 0 if unknown
    climbs: bool  # whether only the peak grows, and not the memory that remains after a step
    unit: str  # what `every`, `steps` and `total` count: a `step`, an `epoch`, or a `round` of an outer loop
    states: bool  # whether gradients and optimizer states grow, which all parameters have after `total` steps


class Varying(TypedDict):
    """A device whose requests differ from step to step, as with batches of varying length."""

    device: int
    bytes: int  # by how much its reserved bytes still grew in the last `steps` steps; 0 if they had settled
    steps: int
    left: int | None  # the steps that the program still makes; None: unknown


class Climb(TypedDict):
    """A device whose peak rose in each of the latest steps: by `bytes` in the last step."""

    device: int
    bytes: int
    steps: int


class Late(TypedDict):
    """Statements of the training loop that did not run but may matter for memory: their test in the source, the number
    of steps after which they will have run, and whether they ran in the first step, when the optimizer had no state.
    """

    file: str
    line: int
    end: int
    text: str
    steps: int | None
    first: bool
    changes: bool  # whether the line has run, and a size on it changes in step `steps`


class Holder(TypedDict):
    """The owner of memory that grew, or that was live when memory ran out."""

    device: int
    kind: str  # as in `plimsoll.holders`
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
    host_bytes: int  # by how much the host's memory grew with each batch
    is_cut: bool
    ended_us: int


class Batches(TypedDict):
    """The training batches, if they differ in size and only the first of them were examined."""

    made: int
    total: int | None


class Warning(TypedDict):
    """A warning about memory that depends on unknown values."""

    place: tuple[str, int] | None
    what: str
    most: int  # the value for --assume with which the memory is largest
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
    likely: bool  # not certain: memory ran out in a call


class Waste(TypedDict):
    """Memory that is live at the peak but not needed there, and the line that frees it: `text` is inserted after line
    `after` of the file, in place of the last `replaces` lines.
    """

    kind: str  # del, shape, view, gradients, states, unread or graph
    name: str
    file: str
    line: int  # where the name was assigned
    bytes: int
    each: int  # the bytes of the graph of one step
    after: int
    replaces: int
    indent: str
    aligned: int  # a line with this indentation, if line `after` has another one, else 0
    text: str


class Fall(TypedDict):
    """Training memory that disappeared and never came back: a description, and the last step in which it existed."""

    text: str
    bytes: int
    step: int


class CompileCaches(TypedDict):
    """The compile caches that a process would reuse."""

    autograd: bool
    graphs: bool
    timings: bool


class Refusal(TypedDict):
    """The technique that cannot be applied, and the reason."""

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
    outside_bytes: int | None  # bytes requested from CUDA, but not by PyTorch's allocator
    outside: list[Outside]
    refused: Refused | None
    compile_caches: CompileCaches
    compiles: bool
    libraries: list[str]
    error: Thrown | None
    reads: list[Read]
    problems: list[str]
    cut: bool
    went_on: bool
    whole: bool  # whether the training loop ran to its end
    ended: bool
    after: list[Place]  # code after the last step that may need memory and did not run
    unseen: list[Place]
    late: list[Late]
    after_error: Thrown | None
    growth: list[GrowingSteps]
    climbs: list[Climb]
    breaks: Break | None
    varying: list[Varying]
    batches: Batches | None
    holders: list[Holder]
    loops: list[CutLoop]
    grew: bool
    warnings: list[Warning]
    graphs: list[Graph]
    falls: list[Fall]
    waste: list[Waste]  # memory at the highest peak that is not needed there
    trains: bool
    captures: int
    techniques: list[dict[str, Any]]  # the effect of each technique: name, applied, detail, lines, …
    refusal: Refusal | None
    written: list[Wrote]  # files written by a fork that serves a trial, in its own view
    hosts: list[str]  # the hosts that the process contacted


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
    looks: bool
    counts: bool
    shows: bool
    ranks: int
    alone: bool


class Done(TypedDict):
    """N.done in the folder for requests: how the fork ended, and whether another fork ran at the same time."""

    status: int | str  # an exit status, EXPIRED or UNABLE
    beside: bool


class Cover(TypedDict):
    """A folder of the view, with the program's private files (`upper`) above those on the disk (`lower`)."""

    place: str
    lower: str
    upper: str


class View(TypedDict):
    """view.json next to the folder for reports: the view of the file system, for forks."""

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
