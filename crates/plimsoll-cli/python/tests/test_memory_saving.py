# The techniques as functions: on the CPU, where numbers can be compared.

import copy
import gc
import hashlib
import random
import weakref

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
nn, F = torch.nn, torch.nn.functional

import plimsoll


class Block(nn.Module):
    def __init__(self, batch_norm):
        super().__init__()
        self.norm, self.up, self.down, self.drop = (
            nn.LayerNorm(32),
            nn.Linear(32, 64),
            nn.Linear(64, 32),
            nn.Dropout(0.1),
        )
        self.batch = nn.BatchNorm1d(32) if batch_norm else nn.Identity()

    def forward(self, x):
        y = self.drop(self.down(F.gelu(self.up(self.norm(x)))))
        return x + self.batch(y.transpose(1, 2)).transpose(1, 2)


class Model(nn.Module):
    def __init__(self, batch_norm=False, dropout=True):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(2048, 32), nn.ModuleList(Block(batch_norm) for _ in range(4))
        self.head = nn.Linear(32, 2048, bias=False)
        for block in self.blocks:
            block.drop.p = 0.1 if dropout else 0.0

    def forward(self, index, target):
        x = self.embedding(index)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).view(-1, 2048), target.view(-1), ignore_index=-1)


def trained(change=None, kind=Model, steps=3, **options):
    # Returns the losses of these steps, and a digest of the parameters and buffers.
    torch.manual_seed(0)
    model = kind(**options)
    optimizer = torch.optim.AdamW(model.parameters())
    if change is not None:
        change(model, optimizer)
    losses = []
    for _ in range(steps):
        loss = model(torch.randint(0, 2048, (8, 16)), torch.randint(-1, 2048, (8, 16)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    digest = hashlib.sha1(b"".join(it.detach().numpy().tobytes() for it in model.state_dict().values()))
    return losses, digest.hexdigest()


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda model, optimizer: plimsoll.checkpoint_blocks(model),
        lambda model, optimizer: plimsoll.checkpoint_blocks(model, every=2),
        lambda model, optimizer: plimsoll.checkpoint_blocks(model, segments=True),
        lambda model, optimizer: plimsoll.checkpoint_blocks(model, segments=1),
        lambda model, optimizer: (plimsoll.offload(model, 100, 1), plimsoll.checkpoint_blocks(model, segments=3)),
        lambda model, optimizer: plimsoll.offload(model, least_bytes=1),
        lambda model, optimizer: plimsoll.offload(model, 40, least_bytes=1),
        lambda model, optimizer: plimsoll.step_in_backward(optimizer),
        lambda model, optimizer: plimsoll.free_grads(optimizer),
        lambda model, optimizer: (plimsoll.offload(model, 100, 1), plimsoll.checkpoint_blocks(model, first=1)),
    ],
)
def test_losses_and_parameters_keep_their_bits_where_that_is_claimed(change, batch_norm, fresh):
    assert trained(change, batch_norm=batch_norm) == trained(batch_norm=batch_norm)


def test_checkpointed_blocks_that_are_known_to_change_nothing_keep_their_bits(fresh):
    # More calls than are watched for changes.
    same = trained(steps=16)
    assert trained(lambda model, optimizer: plimsoll.checkpoint_blocks(model), steps=16) == same


@pytest.mark.parametrize(
    "change",
    [
        lambda model: plimsoll.checkpoint_blocks(model),
        lambda model: plimsoll.checkpoint_blocks(model, segments=2),
        lambda model: plimsoll.offload(model),
    ],
)
def test_parameters_that_stand_in_for_others_do_so_in_the_second_computation(change, fresh):
    # As in meta-learning: a step on copies of the parameters, and the gradient of the loss after it.
    def gradients(change, calls):
        torch.manual_seed(0)
        model = Model()
        if change is not None:
            change(model)
        for _ in range(calls):
            batches = [(torch.randint(0, 2048, (4, 16)), torch.randint(0, 2048, (4, 16))) for _ in range(2)]
            first = dict(model.named_parameters())
            inner = torch.autograd.grad(
                torch.func.functional_call(model, first, batches[0]), list(first.values()), create_graph=True
            )
            second = {name: it - 0.1 * gradient for (name, it), gradient in zip(first.items(), inner)}
            model.zero_grad()
            torch.func.functional_call(model, second, batches[1]).backward()
        return [it.grad for it in model.parameters()]

    for calls in (1, 14):  # also after the calls that are watched for changes
        for one, other in zip(gradients(None, calls), gradients(change, calls)):
            assert torch.equal(one, other)


class Changing(nn.Module):
    # A block with state that a recomputation could change or see changed: host random generators, buffers, attributes.
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.utils.spectral_norm(nn.Linear(32, 64)), nn.Linear(64, 32)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(32))
        self.calls = 0

    def forward(self, x):
        if random.random() < 0.3:
            return x
        self.calls += 1
        self.seen += x.shape[0]
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        noise = torch.from_numpy(np.random.standard_normal(32).astype(np.float32))
        y = self.down(F.gelu(self.up(x - self.mean) * self.seen.sqrt()) + self.calls % 3)
        return x + y + 0.01 * noise


class Changed(Model):
    def __init__(self):
        super().__init__(dropout=False)
        self.blocks = nn.ModuleList(Changing() for _ in range(4))


def test_a_graph_without_a_backward_pass_is_freed_where_tensors_stay(fresh):
    class Anything:
        pass

    def called(model):
        anything = Anything()
        y = model(torch.randn(4, 4))
        y.register_hook(lambda _, it=anything: None)
        return weakref.ref(anything)

    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    plimsoll.offload(model, least_bytes="1MiB")
    left = called(model)
    gc.collect()
    assert left() is None


def test_what_a_block_changes_it_changes_once(fresh):
    def with_calls(change):
        random.seed(1), np.random.seed(1), torch.manual_seed(0)
        made = []
        result = trained(lambda model, optimizer: made.append(model) or change(model), kind=Changed)
        return result, [block.calls for block in made[0].blocks], random.random(), np.random.random()

    assert with_calls(plimsoll.checkpoint_blocks) == with_calls(lambda model: None)


def test_parts_of_a_batch_do_not_each_change_a_buffer(fresh):
    index = torch.zeros(8, 4, dtype=torch.long)
    for technique in (plimsoll.split, plimsoll.accumulate):
        model = Changed()
        random.seed(1)
        technique(model, 2)
        with pytest.raises(plimsoll.RefusedError, match="buffer blocks"):
            model(index, index)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, optimizer: plimsoll.chunked_loss(model, rows=24),
        lambda model, optimizer: plimsoll.accumulate(model, 3),
        lambda model, optimizer: plimsoll.split(model, 4),
        lambda model, optimizer: plimsoll.no_foreach(optimizer),
        lambda model, optimizer: plimsoll.fused(optimizer),
    ],
)
def test_losses_are_near_where_rounding_is_claimed(change, fresh):
    losses, plain = trained(change, dropout=False)[0], trained(dropout=False)[0]
    assert losses == pytest.approx(plain, rel=1e-5)


def test_bf16_changes_the_numbers_a_little(fresh):
    losses, plain = trained(lambda model, _: plimsoll.bf16(model), dropout=False)[0], trained(dropout=False)[0]
    assert losses != plain and losses == pytest.approx(plain, rel=2e-2)


def test_blocks_are_named_and_chosen(fresh):
    assert plimsoll.checkpoint_blocks(Model()) == [f"blocks.{it}" for it in range(4)]
    assert plimsoll.checkpoint_blocks(Model(), every=2) == ["blocks.0", "blocks.2"]
    assert plimsoll.checkpoint_blocks(Model(), first=3, every=2) == ["blocks.0", "blocks.2"]
    for wrong in (dict(every=0), dict(first=0)):
        with pytest.raises(ValueError):
            plimsoll.checkpoint_blocks(Model(), **wrong)


def test_checkpointed_blocks_keep_no_activations(fresh):
    def kept(model):
        # The activations inside the blocks are the only tensors of three dimensions with 64 columns.
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda it: shapes.append(it.shape) or it, lambda it: it):
            model(torch.zeros(8, 16, dtype=torch.long), torch.zeros(8, 16, dtype=torch.long))
        return sum(len(it) == 3 and it[-1] == 64 for it in shapes)

    plain, changed = Model(), Model()
    plimsoll.checkpoint_blocks(changed, every=2)
    assert kept(changed) == kept(plain) / 2 > 0


def test_of_a_segment_only_its_input_stays(fresh):
    # Counts the maximum number of live tensors in a step, for sixteen blocks.
    class Pair(nn.Sequential):
        pass

    def most(change):
        model = nn.Sequential(*[Pair(nn.Linear(8, 8), nn.Tanh()) for _ in range(16)])
        change(model)
        alive, peak = weakref.WeakSet(), 0

        class Mode(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                nonlocal peak
                result = func(*args, **(kwargs or {}))
                if isinstance(result, torch.Tensor) and result.shape == (64, 8):
                    alive.add(result.untyped_storage())
                peak = max(peak, len({it.data_ptr() for it in alive}))
                return result

        with Mode():
            model(torch.randn(64, 8)).sum().backward()
        return peak

    each, four = (most(lambda model: plimsoll.checkpoint_blocks(model, **it)) for it in ({}, dict(segments=4)))
    assert each >= 16 and four <= 14, (each, four)


def kept_bytes(percent, backward=1):
    # Offloads a model of eight tensors of 4,096 bytes. Returns the bytes of these tensors that are on the device at
    # the end of the forward pass, the maximum during the backward passes, and the tensors that are alive afterwards.
    from plimsoll.techniques import lane

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)])
    plimsoll.offload(model, percent, least_bytes=4096)
    lanes, most = [], []
    add, ask = lane.Lane.add, lane.Moved.storage
    try:
        lane.Lane.add = lambda self, tensor: lanes.append(self) or add(self, tensor)
        lane.Moved.storage = lambda self: (ask(self), most.append(self.lane.waiting_bytes))[0]
        for _ in range(2):  # the second pass knows what the first one saved
            result = model(torch.randn(32, 32, requires_grad=True))
            at_end = lanes[-1].waiting_bytes
            for nth in range(backward):
                result.sum().backward(retain_graph=nth < backward - 1)
    finally:
        lane.Lane.add, lane.Moved.storage = add, ask
    left = sum(it() is not None for it in lanes[-1].order)
    return at_end, max(most), left


def test_the_percentage_says_what_stays_on_the_gpu(fresh):
    # Each linear layer saves its input. Except for the first, that is the result that `tanh` saves: five storages.
    for percent, stays in ((100, 2), (60, 2), (40, 3), (20, 4), (1, 4)):
        for backward in (1, 2):
            at_end, most, left = kept_bytes(percent, backward)
            assert at_end == stays * 4096 and most <= at_end and left == 0, (percent, backward, at_end, most, left)


def test_a_tensor_that_changed_on_its_way_is_an_error(fresh):
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(32, 32))

        def forward(self, x):
            y = x * self.scale
            z = y * self.scale  # saves y
            y.add_(1)
            return z

    model = Changes()
    plimsoll.offload(model, least_bytes=1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(torch.randn(32, 32, requires_grad=True)).sum().backward()


def test_a_model_can_be_copied_and_saved(fresh, tmp_path):
    model = Model()
    plimsoll.checkpoint_blocks(model)
    plimsoll.offload(model)
    torch.save(copy.deepcopy(model).state_dict(), tmp_path / "model.pt")
    Model().load_state_dict(torch.load(tmp_path / "model.pt"))


def test_other_models_of_the_class_stay_as_they_are(fresh):
    one, other = Model(dropout=False), Model(dropout=False)
    calls = []
    plimsoll.split(one, 2)
    for model in (one, other):
        model.embedding.register_forward_hook(lambda *_: calls.append(model))
        model(torch.zeros(8, 4, dtype=torch.long), torch.zeros(8, 4, dtype=torch.long))
    assert len(calls) == 3


def test_a_technique_is_taken_away_again(fresh):
    model, calls = Model(), []
    forward = model.embedding.forward
    model.embedding.forward = lambda index: calls.append(1) or forward(index)
    index = torch.zeros(8, 4, dtype=torch.long)
    with plimsoll.split(model, 4):
        model(index, index)
    model(index, index)
    assert len(calls) == 5


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: plimsoll.checkpoint_blocks(nn.Linear(2, 2)), "no repeated blocks"),
        (lambda: [plimsoll.checkpoint_blocks(it) for it in [Model()] * 2], "already"),
        (lambda: [plimsoll.offload(it) for it in [Model()] * 2], "already"),
        (lambda: plimsoll.split(Model(batch_norm=True), 2), "batch normalization"),
        (lambda: plimsoll.step_in_backward(torch.optim.LBFGS(Model().parameters())), "LBFGS"),
        (lambda: plimsoll.no_foreach(torch.optim.AdamW(Model().parameters(), foreach=True)), "set already"),
    ],
)
def test_what_cannot_be_applied_is_refused_with_the_reason(call, said, fresh):
    with pytest.raises(plimsoll.RefusedError, match=said):
        call()


def test_a_refusal_during_training_is_an_exception(fresh):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plimsoll.step_in_backward(optimizer)
    with pytest.raises(plimsoll.RefusedError, match="clip_grad_norm_") as caught:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert caught.value.technique == "step-in-backward"


def test_logits_that_are_used_otherwise_are_refused_at_the_backward_pass(fresh):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4096))
    plimsoll.chunked_loss(model, rows=4)
    logits = model(torch.randn(16, 8))
    with pytest.raises(plimsoll.RefusedError, match="used by"):
        logits.exp().sum().backward()


def test_a_refusal_ends_the_training_of_its_own_model_only(fresh):
    model, other = nn.Sequential(nn.Linear(8, 4)), nn.Linear(8, 4)
    handle = plimsoll.chunked_loss(model)

    def step(it):
        F.cross_entropy(it(torch.randn(16, 8)), torch.zeros(16, dtype=torch.long)).backward()

    for _ in range(2):
        with pytest.raises(plimsoll.RefusedError, match="no linear layer with many outputs"):
            step(model)
        step(other)
    handle.remove()
    step(model)


def test_arguments_that_make_no_sense_are_value_errors(fresh):
    for call in (
        lambda: plimsoll.split(Model(), 1),
        lambda: plimsoll.accumulate(Model(), 0),
        lambda: plimsoll.offload(Model(), least_bytes="much"),
        lambda: plimsoll.offload(Model(), percent=0),
        lambda: plimsoll.chunked_loss(Model(), rows=0),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError, match="torch.nn.Module"):
        plimsoll.offload("model")


@pytest.fixture
def fresh():
    # Techniques that watch the whole process are removed when the test ends.
    from plimsoll import memory_saving
    from plimsoll.techniques import chunked_loss, context, observers

    linear = F.linear
    yield
    F.linear = linear
    memory_saving.only.clear()
    context.active.clear()
    chunked_loss.otherwise.clear()
    for listeners in observers.listeners.values():
        listeners.clear()


def test_eight_bit_moments_take_a_quarter_of_the_memory_and_train_on(fresh):
    torch.manual_seed(0)
    model = Model(dropout=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(6):
        if step == 2:
            plimsoll.adam_8bit(optimizer)  # the moments of two steps are converted
        loss = model(torch.arange(32).view(4, 8), torch.arange(1, 33).view(4, 8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    state = optimizer.state[model.head.weight]
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.uint8
    with pytest.raises(plimsoll.RefusedError, match="SGD"):
        plimsoll.adam_8bit(torch.optim.SGD(model.parameters()))


def test_eight_bit_moments_have_to_come_before_a_schedule(fresh):
    optimizer = torch.optim.Adam(Model().parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(plimsoll.RefusedError, match="create the scheduler after"):
        plimsoll.adam_8bit(optimizer)
