"""Names of functions and methods that dataflow.py knows: whether they show a value, store it, pass it on, or use it as
a size.
"""

from __future__ import annotations

# Functions and methods whose results are computed from their arguments.
PURE = set(
    "float int round abs bool complex min max sum sorted list tuple set dict enumerate zip map filter divmod pow reversed any"
    " all iter next item tolist cpu numpy to detach clone float64 isclose copy deepcopy get pop values items keys mean std"
    " ceil floor sqrt log10 exp average median array asarray stack concatenate cat".split()
)
# Functions and methods that print or log their arguments.
SHOWS = set(
    "print pprint repr str format log info debug warning warn error exception critical write writelines writerow add_scalar"
    " add_scalars log_metric log_metrics set_postfix set_postfix_str set_description dump dumps save save_pretrained"
    " echo display secho flush report join hasattr isinstance issubclass type id hash callable len log_dict add_text"
    " tqdm_write sleep assert_close isnan isinf isfinite".split()
)
# Methods of a container that store their arguments in it.
HOLDS = set("append appendleft extend add update insert setdefault put push".split())
# Attributes and methods that do not depend on values.
METADATA = set(
    "shape size dim ndim numel nelement dtype device stride is_cuda requires_grad grad_fn element_size is_contiguous"
    " data_ptr __class__ __name__".split()
)
# PyTorch's functions and methods whose arguments are sizes.
SIZES = set(
    "range slice arange linspace logspace zeros ones empty rand randn eye full new_zeros new_ones new_empty new_full randperm"
    " view reshape expand repeat tile unflatten narrow split chunk tensor_split split_with_sizes unfold topk kthvalue"
    " repeat_interleave one_hot interpolate pad multinomial islice resize_ resize as_strided broadcast_to tril_indices"
    " triu_indices pack_padded_sequence pad_packed_sequence take_along_dim select index_select bincount hsplit vsplit dsplit"
    " segment_reduce AdaptiveAvgPool2d Linear Conv1d Conv2d Embedding Parameter randint".split()
)
READERS = set(
    "item tolist cpu numpy to float int bool complex __index__ __int__ __float__ __bool__ equal allclose".split()
)
FINITE = ("isnan", "isinf", "isfinite", "found_inf", "found_inf_per_device", "nan_to_num")
