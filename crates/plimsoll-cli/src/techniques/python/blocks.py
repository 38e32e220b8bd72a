# The repeated blocks of a model: entries of a container, with modules inside, whose class occurs more than once.
#
# Of nested ones the outermost count. A container that is itself an entry (a stage of a ResNet) is searched instead.

import torch

CONTAINERS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)


def find(root):
    # [(path, block)] in the order of definition.
    entries = {}
    for module in root.modules():
        if isinstance(module, CONTAINERS):
            for child in module.children():
                if next(child.children(), None) is not None and next(child.parameters(), None) is not None:
                    entries[id(child)] = child
    kinds = [type(it) for it in entries.values()]
    repeated = {id(it) for it in entries.values() if kinds.count(type(it)) > 1}
    found = []

    def search(path, module):
        if id(module) in repeated and not is_stage(module):
            if all(block is not module for _, block in found):
                found.append((path, module))
            return
        for name, child in module.named_children():
            search(f"{path}.{name}" if path else name, child)

    def is_stage(module):
        below = (it for it in module.modules() if it is not module)
        return isinstance(module, CONTAINERS) and any(id(it) in repeated for it in below)

    search("", root)
    return found


def expression(paths):
    # The blocks as Python: `model.h[:4]` where they are the first entries of one list, otherwise a list of paths.
    parents = {path.rpartition(".")[0] for path in paths}
    names = [path.rpartition(".")[2] for path in paths]
    if len(parents) == 1 and all(it.isdecimal() for it in names):
        parent = "".join(f"[{it}]" if it.isdecimal() else f".{it}" for it in parents.pop().split(".") if it)
        return f"model{parent}[:{len(names)}]"
    if len(paths) <= 4:
        return "[" + ", ".join(f"model.get_submodule({path!r})" for path in paths) + "]"
    first, last = paths[0], paths[-1]
    return f"[...]  # {len(paths)} modules from {first} to {last}"
