"""Records the hosts that the program contacts, and keeps experiment trackers offline, because values computed here
are zeros and must not appear among the results of real runs.
"""

from __future__ import annotations

import functools
import os

from . import settings

TYPE_CHECKING = False  # importing `typing` would delay every process by milliseconds
if TYPE_CHECKING:
    from typing import Any

HOSTS = os.path.join(os.path.dirname(settings.FOLDER), "hosts")
LOCAL = ("localhost", "127.", "::1", "0.0.0.0", "::")


KNOWN: set[str] = set()  # hosts that this process has contacted


def note(host: Any) -> None:
    """Records a host that the program contacts, once."""
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if not isinstance(host, str) or not host or host.startswith(LOCAL) or host in KNOWN:
        return
    KNOWN.add(host)
    try:
        with open(HOSTS, "a") as file:
            file.write(f"{host}\n")
    except OSError:
        pass


def sockets(socket: Any) -> None:
    """Records the hosts that sockets contact, by name if the program looks up a name. An address that a lookup returned
    does not count as another host.
    """
    looked_up = socket.getaddrinfo
    addresses: set[Any] = set()

    @functools.wraps(looked_up)
    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        note(host)
        found = looked_up(host, *args, **kwargs)
        addresses.update(it[4][0] for it in found)
        return found

    def connecting(name: str) -> None:
        original = getattr(socket.socket, name)

        @functools.wraps(original)
        def connect(self: Any, address: int) -> Any:
            if isinstance(address, tuple) and address and address[0] not in addresses:
                note(address[0])
            return original(self, address)

        setattr(socket.socket, name, connect)

    socket.getaddrinfo = getaddrinfo
    connecting("connect")
    connecting("connect_ex")


def wandb(it: Any) -> None:
    """Keeps runs of Weights & Biases offline."""
    begin = it.init

    @functools.wraps(begin)
    def init(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mode") != "disabled":
            kwargs["mode"] = "offline"
        return begin(*args, **kwargs)

    it.init = init


def mlflow(it: Any) -> None:
    """Sends MLflow runs to the URI that the program `plimsoll` has set."""
    it.set_tracking_uri = lambda uri: None


def comet(it: Any) -> None:
    """Keeps Comet experiments offline."""
    if hasattr(it, "OfflineExperiment"):
        it.Experiment = it.OfflineExperiment


def neptune(it: Any) -> None:
    """Keeps Neptune runs offline."""
    for name in ("init_run", "init_project", "init_model", "init_model_version"):
        begin = getattr(it, name, None)
        if begin is not None:
            setattr(it, name, functools.partial(begin, mode="offline"))


HOOKS = {"socket": sockets, "wandb": wandb, "mlflow": mlflow, "comet_ml": comet, "neptune": neptune}
