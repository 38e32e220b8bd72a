"""PyTorch's TCPStore, as a client of our server or as a server for our client. The other end is store.rs."""

import sys
from datetime import timedelta

from torch.distributed import TCPStore

MODE, PORT = sys.argv[1], int(sys.argv[2])


def main() -> None:
    """Does what the mode asks for. A failed assertion makes this program fail."""
    store = TCPStore(
        "127.0.0.1", PORT, is_master=MODE == "server", wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    if MODE == "server":
        store.set("theirs", "from python")
        assert store.get("ours") == b"from rust"
        return
    assert store.get("ours") == b"from rust"
    assert store.add("sum", 5) == 5
    assert store.add("sum", -7) == -2
    assert store.get("sum") == b"-2"
    assert store.compare_set("first", "", "me") == b"me"
    assert store.compare_set("first", "you", "they") == b"me"
    assert store.compare_set("first", "me", "they") == b"they"
    assert store.check(["ours"])
    assert not store.check(["ours", "never"])
    store.append("joined", "a")
    store.append("joined", "b")
    assert store.multi_get(["joined", "ours"]) == [b"ab", b"from rust"]
    store.multi_set(["x", "y"], ["1", "2"])
    assert store.get("y") == b"2"
    assert store.delete_key("x")
    assert not store.delete_key("x")
    assert store.num_keys() >= 5
    try:
        store.wait(["never"], timedelta(milliseconds=100))
    except Exception as error:
        assert "never" in str(error) or "timeout" in str(error).lower(), error
    else:
        raise AssertionError("a key that nobody set came")
    store.set("theirs", "from python")


main()
