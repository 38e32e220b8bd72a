# How the linear layers of a block are split over ranks. `tests/run_fsdp.rs` compares the numbers of two ranks.

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from plimsoll.techniques.tensor_parallel import clipped, lines, plan_of


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp, self.other = nn.Module(), nn.Module(), nn.Module()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self.attention, name, nn.Linear(8, 8))
        self.mlp.up_proj, self.mlp.down_proj = nn.Linear(8, 16), nn.Linear(16, 8)
        self.other.up, self.other.mix = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x


def test_layers_are_split_where_a_part_of_a_block_begins_and_ends_with_known_names():
    plan = plan_of(Block())
    columns = {path for path, way in plan.items() if way == "columns"}
    assert columns == {"attention.q_proj", "attention.k_proj", "attention.v_proj", "mlp.up_proj"}
    assert set(plan) - columns == {"attention.o_proj", "mlp.down_proj"}
    # Without the layer that ends it, the rest of a block would get a part of its input.
    assert plan_of(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))) == {}


def test_the_lines_have_the_plan():
    model = nn.ModuleList([Block(), Block()])
    text = "\n".join(lines(model, ["0", "1"], plan_of(model[0]), 2))
    assert "'attention.o_proj': RowwiseParallel()," in text and "'mlp.up_proj': ColwiseParallel()," in text
    compile(text, "lines", "exec")


def test_clipping_of_whole_gradients_is_pytorchs():
    parameter = nn.Parameter(torch.ones(4))
    parameter.grad = torch.full((4,), 3.0)
    norm = clipped(nn.utils.clip_grad_norm_)([parameter], 1.0)
    assert norm.item() == pytest.approx(6.0) and parameter.grad.norm().item() == pytest.approx(1.0)
