//! The planner's client, in the user's process. It starts the planner at cuDNN's first plan; the planner ends with this
//! process. If it does not start, or stops answering, that is reported once, and the model provides the answers from
//! then on.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use super::memo::Memo;
use super::wire::{self, Found, Graph, NOT_ASKED, Reply, Request};
use super::{description, wire::receive};
use crate::gpu::setup;
use crate::lock::locked;
use crate::{notice, place, settings};

/// Making a plan may compile kernels, which takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// An answer, or cuDNN's status: "not supported", as on a GPU.
pub(crate) type Asked<T> = Result<T, c_int>;

/// The heuristics' configurations for a graph; `None` if cuDNN is not available.
pub(crate) fn heuristics(graph: Graph) -> Option<Asked<Found>> {
    match with_client(|client| client.heuristics(graph))? {
        Reply::Found(found) => Some(Ok(found)),
        other => refused(&other),
    }
}

/// Workspace bytes of a plan for one of those configurations; `None` if cuDNN is not available.
pub(crate) fn plan(heuristics: u64, place: u64) -> Option<Asked<i64>> {
    planned(with_client(|client| client.plan(heuristics, place))?)
}

/// Workspace bytes of a plan for a configuration that the caller built; `None` if cuDNN is not available.
pub(crate) fn plan_of(configuration: Graph) -> Option<Asked<i64>> {
    planned(with_client(|client| {
        let request = Request::PlanOf(configuration);
        client.known(&request.bytes(), |client| client.ask(&request))
    })?)
}

fn planned(reply: Reply) -> Option<Asked<i64>> {
    match reply {
        Reply::Planned(bytes) => Some(Ok(bytes)),
        other => refused(&other),
    }
}

/// "Not supported" is an answer; any other status means that the planner did not understand the request.
fn refused<T>(reply: &Reply) -> Option<Asked<T>> {
    match reply {
        Reply::Refused { status: status @ 3000..4000, .. } => Some(Err(*status)),
        _ => None,
    }
}

/// The requests of this process, and of the one from which it was forked.
struct Client {
    memo: Option<Memo>,
    /// The graphs for which there were requests. Their indices are the numbers in [`Found`].
    graphs: Vec<AskedGraph>,
    planner: Option<Planner>,
}

struct AskedGraph {
    graph: Graph,
    /// The process whose planner answered, and the planner's number.
    asked: Option<(u32, u64)>,
}

/// The planner of the process with this ID.
struct Planner {
    process: u32,
    /// `None` after a failure.
    socket: Option<UnixStream>,
}

static CLIENT: Mutex<Option<Client>> = Mutex::new(None);

fn with_client<T>(work: impl FnOnce(&mut Client) -> T) -> T {
    let begun =
        || Client { memo: Memo::of(&description::device(setup())), graphs: Vec::new(), planner: None };
    work(locked(&CLIENT).get_or_insert_with(begun))
}

impl Client {
    fn heuristics(&mut self, graph: Graph) -> Option<Reply> {
        let request = Request::Heuristics(graph.clone());
        let mut asked = None;
        let reply = self.known(&request.bytes(), |client| {
            let reply = client.ask(&request)?;
            if let Reply::Found(found) = &reply {
                asked = Some((std::process::id(), found.heuristics));
            }
            Some(reply)
        })?;
        let Reply::Found(found) = reply else { return Some(reply) };
        let heuristics = self.graphs.len() as u64;
        self.graphs.push(AskedGraph { graph, asked });
        Some(Reply::Found(Found { heuristics, ..found }))
    }

    fn plan(&mut self, heuristics: u64, place: u64) -> Option<Reply> {
        let number = usize::try_from(heuristics).ok()?;
        let AskedGraph { graph, asked } = self.graphs.get(number)?;
        let (request, asked) = (Request::Heuristics(graph.clone()), *asked);
        let key = [&request.bytes()[..], &place.to_le_bytes()].concat();
        self.known(&key, |client| {
            let process = std::process::id();
            let heuristics = match asked {
                Some((of, heuristics)) if of == process => heuristics,
                // Another process's planner found the configurations.
                _ => match client.ask(&request)? {
                    Reply::Found(found) => found.heuristics,
                    other => return Some(other),
                },
            };
            client.graphs[number].asked = Some((process, heuristics));
            client.ask(&Request::Plan { heuristics, place })
        })
    }

    /// The known answer for this key; otherwise the planner's.
    fn known(&mut self, key: &[u8], ask: impl FnOnce(&mut Client) -> Option<Reply>) -> Option<Reply> {
        if let Some(reply) = self.memo.as_mut().and_then(|memo| memo.find(key)) {
            return Some(reply);
        }
        let reply = ask(self)?;
        let is_answer =
            matches!(reply, Reply::Found(_) | Reply::Planned(_) | Reply::Refused { status: 3000..4000, .. });
        if let Some(memo) = self.memo.as_mut().filter(|_| is_answer) {
            memo.add(key, &reply);
        }
        Some(reply)
    }

    /// Asks this process's planner.
    fn ask(&mut self, request: &Request) -> Option<Reply> {
        let process = std::process::id();
        // A forked child inherits its parent's socket, so it gets its own planner.
        let planner = match &mut self.planner {
            Some(planner) if planner.process == process => planner,
            other => {
                let socket = started().inspect_err(|why| notice::assume(notice::CUDNN, &not_asked(why))).ok();
                other.insert(Planner { process, socket })
            }
        };
        let reply = exchange(planner.socket.as_mut()?, request);
        if let Err(why) = &reply {
            notice::assume(notice::CUDNN, &not_asked(why));
            planner.socket = None;
        }
        reply.ok()
    }
}

fn not_asked(why: &str) -> String {
    format!("cannot be asked for its workspaces ({why})")
}

fn exchange(socket: &mut UnixStream, request: &Request) -> Result<Reply, String> {
    let broken = |why: std::io::Error| format!("its process: {why}");
    wire::send(socket, &request.bytes()).map_err(broken)?;
    let message = receive(socket).map_err(broken)?.ok_or("its process ended")?;
    Reply::read(&message).ok_or_else(|| "its reply is malformed".to_owned())
}

/// Starts the planner with the cuDNN that is loaded here.
fn started() -> Result<UnixStream, String> {
    let program =
        settings::text(settings::PLANNER).ok_or_else(|| format!("{} is not set", settings::PLANNER))?;
    let library = loaded("libcudnn.so.9").ok_or("no libcudnn.so.9 is loaded")?;
    let folder = loaded(place::LIBRARY).ok_or("the stand-in was loaded under another name")?;
    let folder = Path::new(&folder).with_file_name(place::PLANNER);
    let cannot = |why: std::io::Error| format!("{program}: {why}");
    let (mut socket, other) = UnixStream::pair().map_err(cannot)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(cannot)?;
    let mut command = Command::new(&program);
    command.arg(place::PLANNER).stdin(OwnedFd::from(other)).stdout(Stdio::null()).stderr(Stdio::null());
    for variable in [
        "LD_PRELOAD",
        settings::ANSWERS,
        settings::NOTICES,
        settings::SHARED,
        settings::CONTEXT,
        settings::FAULT,
    ] {
        command.env_remove(variable);
    }
    command.env("LD_LIBRARY_PATH", folder).env(settings::CUDNN_WORKSPACE, "model");
    // The process started here starts the planner and exits, so that the user's program does not get an unknown child.
    // Waiting for it may fail, if the program ignores SIGCHLD; that is not an error.
    let _status = command.spawn().map_err(cannot)?.wait();
    let layout = description::layout(setup());
    let device = description::device(setup());
    match exchange(&mut socket, &Request::Describe { library, device, layout })? {
        Reply::Described { version } => {
            let version = format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
            settings::say(&format!(
                "cuDNN {version} is asked for its workspaces, with a description of the GPU"
            ));
            Ok(socket)
        }
        Reply::Refused { status: NOT_ASKED, why } => Err(why),
        Reply::Refused { status, .. } => {
            Err(format!("it cannot read a GPU description (this needs cuDNN 9.8): status {status}"))
        }
        _ => Err("its reply is unexpected".to_owned()),
    }
}

/// The path of the loaded library with this name.
fn loaded(name: &str) -> Option<String> {
    let mut search = Search { name, found: None };
    // SAFETY: the callback gets `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(compare), (&raw mut search).cast()) };
    search.found
}

struct Search<'a> {
    name: &'a str,
    found: Option<String>,
}

unsafe extern "C" fn compare(library: *mut libc::dl_phdr_info, _bytes: usize, search: *mut c_void) -> c_int {
    // SAFETY: `loaded` passes a `Search`, and the loader an entry whose name is null or a zero-terminated string.
    let (search, name) = unsafe {
        let name = (*library).dlpi_name;
        (&mut *search.cast::<Search<'_>>(), if name.is_null() { c"" } else { CStr::from_ptr(name) })
    };
    let path = name.to_string_lossy();
    if Path::new(path.as_ref()).file_name().is_some_and(|file| file == search.name) {
        search.found = Some(path.into_owned());
    }
    c_int::from(search.found.is_some())
}
