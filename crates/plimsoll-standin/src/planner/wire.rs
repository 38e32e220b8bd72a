//! Requests to the planner and its replies, as bytes: little-endian numbers; texts and lists after their length. Both
//! ends are from the same build, so the protocol has no versions.

use std::io::{self, Read, Write};

/// `CUDNN_TYPE_BACKEND_DESCRIPTOR`: an attribute of this type holds handles.
pub(crate) const DESCRIPTOR: i32 = 15;
/// The status of an error that is not cuDNN's.
pub(crate) const NOT_ASKED: i32 = -1;
/// The longest message.
const MOST_BYTES: usize = 1 << 24;

/// One attribute of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) name: i32,
    /// The type of its values.
    pub(crate) kind: i32,
    pub(crate) count: i64,
    pub(crate) bytes: Vec<u8>,
}

/// A descriptor. Handles among its values are indices of earlier nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: i32,
    pub(crate) attributes: Vec<Attribute>,
}

/// A descriptor, the last node, with everything that it refers to.
pub(crate) type Graph = Vec<Node>;

/// A request to the planner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// Load this library, for a device with these properties and this layout of multiprocessors.
    Describe { library: String, device: String, layout: Option<Vec<i32>> },
    /// Run the heuristics on this graph.
    Heuristics(Graph),
    /// Plan the configuration at this index of an earlier heuristics result.
    Plan { heuristics: u64, place: u64 },
    /// Plan a configuration that the caller built.
    PlanOf(Graph),
}

/// The heuristics' configurations, best first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) heuristics: u64,
    pub(crate) engines: Vec<Engine>,
}

/// A configuration's engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Engine {
    pub(crate) index: i64,
    /// `cudnnBackendNumericalNote_t`.
    pub(crate) numerical_notes: Vec<i32>,
    /// `cudnnBackendBehaviorNote_t`.
    pub(crate) behavior_notes: Vec<i32>,
}

/// The planner's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// cuDNN's version, such as 91900.
    Described {
        version: u64,
    },
    Found(Found),
    /// Workspace bytes.
    Planned(i64),
    /// cuDNN's status, or [`NOT_ASKED`].
    Refused {
        status: i32,
        why: String,
    },
}

/// The next message; `None` if the other end is closed.
pub(crate) fn receive(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > MOST_BYTES {
        return Err(io::Error::other("the message is too long"));
    }
    let mut message = vec![0; length];
    from.read_exact(&mut message)?;
    Ok(Some(message))
}

/// Sends a message.
pub(crate) fn send(to: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    to.write_all(&[&length.to_le_bytes(), message].concat())
}

impl Request {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Request::Describe { library, device, layout } => {
                out.push(0);
                put_bytes(&mut out, library.as_bytes());
                put_bytes(&mut out, device.as_bytes());
                out.push(u8::from(layout.is_some()));
                put_list(&mut out, layout.as_deref().unwrap_or_default());
            }
            Request::Heuristics(graph) => {
                out.push(1);
                put_graph(&mut out, graph);
            }
            Request::Plan { heuristics, place } => {
                out.push(2);
                out.extend(heuristics.to_le_bytes());
                out.extend(place.to_le_bytes());
            }
            Request::PlanOf(graph) => {
                out.push(3);
                put_graph(&mut out, graph);
            }
        }
        out
    }

    pub(crate) fn read(message: &[u8]) -> Option<Request> {
        let mut from = Reader(message);
        let request = match from.byte()? {
            0 => {
                let (library, device) = (from.text()?, from.text()?);
                let (is_there, layout) = (from.byte()? == 1, from.list()?);
                Request::Describe { library, device, layout: is_there.then_some(layout) }
            }
            1 => Request::Heuristics(from.graph()?),
            2 => Request::Plan { heuristics: from.u64()?, place: from.u64()? },
            3 => Request::PlanOf(from.graph()?),
            _ => return None,
        };
        from.0.is_empty().then_some(request)
    }
}

impl Reply {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Reply::Described { version } => {
                out.push(0);
                out.extend(version.to_le_bytes());
            }
            Reply::Found(found) => {
                out.push(1);
                out.extend(found.heuristics.to_le_bytes());
                put_length(&mut out, found.engines.len());
                for engine in &found.engines {
                    out.extend(engine.index.to_le_bytes());
                    put_list(&mut out, &engine.numerical_notes);
                    put_list(&mut out, &engine.behavior_notes);
                }
            }
            Reply::Planned(bytes) => {
                out.push(2);
                out.extend(bytes.to_le_bytes());
            }
            Reply::Refused { status, why } => {
                out.push(3);
                out.extend(status.to_le_bytes());
                put_bytes(&mut out, why.as_bytes());
            }
        }
        out
    }

    pub(crate) fn read(message: &[u8]) -> Option<Reply> {
        let mut from = Reader(message);
        let reply = match from.byte()? {
            0 => Reply::Described { version: from.u64()? },
            1 => {
                let heuristics = from.u64()?;
                let engines = (0..from.length()?).map(|_| {
                    let index = from.i64()?;
                    Some(Engine { index, numerical_notes: from.list()?, behavior_notes: from.list()? })
                });
                Reply::Found(Found { heuristics, engines: engines.collect::<Option<_>>()? })
            }
            2 => Reply::Planned(from.i64()?),
            3 => Reply::Refused { status: from.i32()?, why: from.text()? },
            _ => return None,
        };
        from.0.is_empty().then_some(reply)
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend(bytes);
}

fn put_list(out: &mut Vec<u8>, numbers: &[i32]) {
    put_length(out, numbers.len());
    numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
}

fn put_graph(out: &mut Vec<u8>, graph: &Graph) {
    put_length(out, graph.len());
    for node in graph {
        out.extend(node.kind.to_le_bytes());
        put_length(out, node.attributes.len());
        for Attribute { name, kind, count, bytes } in &node.attributes {
            out.extend(name.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend(count.to_le_bytes());
            put_bytes(out, bytes);
        }
    }
}

/// The unread rest of a message. A length in a message never reserves memory.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.take().map(u32::from_le_bytes)?).ok()
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.length()?;
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first.to_vec())
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }

    fn list(&mut self) -> Option<Vec<i32>> {
        (0..self.length()?).map(|_| self.i32()).collect()
    }

    fn graph(&mut self) -> Option<Graph> {
        let nodes = (0..self.length()?).map(|_| {
            let kind = self.i32()?;
            let attributes = (0..self.length()?).map(|_| {
                let (name, kind, count) = (self.i32()?, self.i32()?, self.i64()?);
                Some(Attribute { name, kind, count, bytes: self.bytes()? })
            });
            Some(Node { kind, attributes: attributes.collect::<Option<_>>()? })
        });
        nodes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_read_and_what_is_cut_off_is_refused() {
        let attribute = Attribute { name: 902, kind: 3, count: 2, bytes: vec![7; 16] };
        let graph =
            vec![Node { kind: 17, attributes: vec![attribute] }, Node { kind: 4, attributes: vec![] }];
        let (library, device) = ("/a/libcudnn.so.9".to_owned(), "{}".to_owned());
        let requests = [
            Request::Describe { library, device, layout: Some(vec![18, 16]) },
            Request::Heuristics(graph.clone()),
            Request::Plan { heuristics: 3, place: 1 },
            Request::PlanOf(graph),
        ];
        for request in requests {
            let bytes = request.bytes();
            assert!((0..bytes.len()).all(|length| Request::read(&bytes[..length]).is_none()));
            assert_eq!(Request::read(&bytes), Some(request));
        }
        let engine = Engine { index: 65, numerical_notes: vec![0], behavior_notes: vec![1, 2] };
        let replies = [
            Reply::Described { version: 91900 },
            Reply::Found(Found { heuristics: 3, engines: vec![engine] }),
            Reply::Planned(1 << 40),
            Reply::Refused { status: 3000, why: "no".to_owned() },
        ];
        for reply in replies {
            let bytes = reply.bytes();
            assert!((0..bytes.len()).all(|length| Reply::read(&bytes[..length]).is_none()));
            assert_eq!(Reply::read(&bytes), Some(reply));
        }
        assert_eq!(Request::read(&[1, 255, 255, 255, 255]), None, "a length without its bytes");
    }
}
