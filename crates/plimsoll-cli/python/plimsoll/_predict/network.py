# The hosts that the program contacts, and trackers of experiments that must not: values computed here are zeros, and nobody wants
# them beside the real runs.

import functools
import os

from . import settings

HOSTS = os.path.join(os.path.dirname(settings.FOLDER), "hosts")
LOCAL = ("localhost", "127.", "::1", "0.0.0.0", "::")


def note(host, known=set()):
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if not isinstance(host, str) or not host or host.startswith(LOCAL) or host in known:
        return
    known.add(host)
    try:
        with open(HOSTS, "a") as file:
            file.write(f"{host}\n")
    except OSError:
        pass


def sockets(socket):
    # By name where a name is looked up; an address that a lookup returned is not another host.
    looked_up, addresses = socket.getaddrinfo, set()

    @functools.wraps(looked_up)
    def getaddrinfo(host, *args, **kwargs):
        note(host)
        found = looked_up(host, *args, **kwargs)
        addresses.update(it[4][0] for it in found)
        return found

    def connecting(name):
        original = getattr(socket.socket, name)

        @functools.wraps(original)
        def connect(self, address):
            if isinstance(address, tuple) and address and address[0] not in addresses:
                note(address[0])
            return original(self, address)

        setattr(socket.socket, name, connect)

    socket.getaddrinfo = getaddrinfo
    connecting("connect")
    connecting("connect_ex")


def wandb(it):
    begin = it.init

    @functools.wraps(begin)
    def init(*args, **kwargs):
        if kwargs.get("mode") != "disabled":
            kwargs["mode"] = "offline"
        return begin(*args, **kwargs)

    it.init = init


def mlflow(it):
    it.set_tracking_uri = lambda uri: None


def comet(it):
    if hasattr(it, "OfflineExperiment"):
        it.Experiment = it.OfflineExperiment


def neptune(it):
    for name in ("init_run", "init_project", "init_model", "init_model_version"):
        begin = getattr(it, name, None)
        if begin is not None:
            setattr(it, name, functools.partial(begin, mode="offline"))


HOOKS = {"socket": sockets, "wandb": wandb, "mlflow": mlflow, "comet_ml": comet, "neptune": neptune}
