//! A server of NFSv4.0 that hands names to its tree as they are: a `/` leads several steps, `..` up to the root of all, and a NUL ends
//! a name. Its handles are the paths themselves, so that whoever is let through with a guessed one is where he wants to be.

use crate::compound::carried_out;
use crate::played::{read_record, reply_to, server};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use weir_filewall::wire::nfs4::arguments::{Argument, Compound, head, operations};
use weir_filewall::wire::nfs4::{Op4, has_bit, status};
use weir_filewall::wire::rpc::call_head;
use weir_filewall::wire::xdr::{Reader, get_u32, put_opaque, put_u32, put_u64};

/// What stands before the path in a handle.
pub const HANDLE: &[u8] = b"h:";

/// A file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub folder: bool,
    pub data: Vec<u8>,
    pub mode: u32,
    pub seconds: u32,
}

/// What the server has, by path.
#[derive(Debug, Default)]
pub struct Tree {
    pub nodes: BTreeMap<Vec<u8>, Node>,
    /// Operations that it carried out.
    pub done: usize,
}

pub type Shared = Arc<Mutex<Tree>>;

/// Begins to serve a tree.
pub fn careless4(nodes: &[(&str, Option<&str>, u32)]) -> (SocketAddr, Shared) {
    let (address, connections) = server();
    let shared = Shared::default();
    for (path, data, seconds) in nodes {
        let node = Node {
            folder: data.is_none(),
            data: data.unwrap_or_default().into(),
            mode: if data.is_none() { 0o755 } else { 0o644 },
            seconds: *seconds,
        };
        shared.lock().unwrap().nodes.insert(path.as_bytes().to_vec(), node);
    }
    let served = shared.clone();
    std::thread::spawn(move || {
        for mut stream in connections {
            let tree = served.clone();
            std::thread::spawn(move || {
                while let Some(record) = read_record(&mut stream) {
                    let results = tree.lock().unwrap().carry_out(&record);
                    if stream.write_all(&reply_to(&record, &results)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, shared)
}

/// What a careless system makes of a name in a folder.
fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let name = &name[..end];
    let mut parts: Vec<&[u8]> = Vec::new();
    let from = if name.starts_with(b"/") { &[][..] } else { folder };
    for part in from.split(|byte| *byte == b'/').chain(name.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.iter().flat_map(|part| [b"/", *part]).flatten().copied().collect()
}

fn below<'p>(path: &'p [u8], folder: &[u8]) -> Option<&'p [u8]> {
    path.strip_prefix(folder).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Where operations are.
#[derive(Default)]
struct At {
    current: Option<Vec<u8>>,
    saved: Option<Vec<u8>>,
}

impl Tree {
    fn carry_out(&mut self, record: &[u8]) -> Vec<u8> {
        let mut reader = Reader::whole(record);
        call_head(&mut reader).unwrap();
        let compound = head(&mut reader).unwrap();
        let mut found = Compound::default();
        operations(&mut reader, &compound, &mut found).unwrap();
        let mut at = At::default();
        carried_out(compound.tag.of(record), &found.ops, |argument, out| {
            if let Err(status) = self.one(argument, record, &mut at, out) {
                return status;
            }
            self.done += 1;
            status::OK
        })
    }

    fn there(&self, path: Option<&Vec<u8>>) -> Result<(Vec<u8>, &Node), u32> {
        let path = path.ok_or(status::NOFILEHANDLE)?;
        let node = self.nodes.get(path).ok_or(status::STALE)?;
        Ok((path.clone(), node))
    }

    /// A name in a folder, and whether there is something.
    fn named(&self, folder: Option<&Vec<u8>>, name: &[u8]) -> Result<(Vec<u8>, bool), u32> {
        let (folder, node) = self.there(folder)?;
        if !node.folder {
            return Err(20);
        }
        let path = joined(&folder, name);
        let there = self.nodes.contains_key(&path);
        Ok((path, there))
    }

    fn put(&mut self, path: &[u8], folder: bool) {
        let node = Node { folder, data: Vec::new(), mode: 0o755, seconds: 1 };
        self.nodes.insert(path.to_vec(), node);
    }

    fn one(
        &mut self,
        argument: &Argument,
        record: &[u8],
        At { current, saved }: &mut At,
        out: &mut Vec<u8>,
    ) -> Result<(), u32> {
        let name = |number: usize| argument.names[number].of(record);
        let zeros = |out: &mut Vec<u8>, bytes: usize| out.resize(out.len() + bytes, 0);
        match argument.op {
            Op4::PutRootFh => *current = Some(Vec::new()),
            Op4::PutFh => {
                let handle = argument.handle.unwrap().of(record);
                let path = handle.strip_prefix(HANDLE).ok_or(10001u32)?.to_vec();
                self.there(Some(&path))?;
                *current = Some(path);
            }
            Op4::GetFh => put_opaque(out, &[HANDLE, &self.there(current.as_ref())?.0].concat()),
            Op4::SaveFh => saved.clone_from(current),
            Op4::RestoreFh => current.clone_from(saved),
            Op4::Lookup => match self.named(current.as_ref(), name(0))? {
                (path, true) => *current = Some(path),
                _ => return Err(status::NOENT),
            },
            Op4::LookupParent => *current = Some(joined(&self.there(current.as_ref())?.0, b"..")),
            Op4::GetAttr => {
                let (path, node) = self.there(current.as_ref())?;
                put_attributes(&path, node, argument.wanted.unwrap().of(record), out);
            }
            Op4::Access => {
                let asked = get_u32(record, argument.access_at.unwrap());
                [asked, asked].into_iter().for_each(|word| put_u32(out, word));
            }
            Op4::Read => {
                put_u32(out, 1);
                put_opaque(out, &self.there(current.as_ref())?.1.data);
            }
            Op4::Write => {
                let (path, _) = self.there(current.as_ref())?;
                self.nodes.get_mut(&path).unwrap().data = b"written".to_vec();
                [argument.count, 2, 0, 0].into_iter().for_each(|word| put_u32(out, word));
            }
            Op4::SetAttr => {
                let (path, _) = self.there(current.as_ref())?;
                let node = self.nodes.get_mut(&path).unwrap();
                (node.mode, node.data) = (0o777, Vec::new());
                zeros(out, 4);
            }
            Op4::ReadDir => self.list(argument, record, current.as_ref(), out)?,
            Op4::SecInfo => {
                self.named(current.as_ref(), name(0))?.1.then_some(()).ok_or(status::NOENT)?;
                [1, 1].into_iter().for_each(|word| put_u32(out, word));
                *current = None;
            }
            Op4::Commit => zeros(out, 8),
            Op4::Remove => {
                let (path, there) = self.named(current.as_ref(), name(0))?;
                there.then_some(()).ok_or(status::NOENT)?;
                self.nodes.retain(|other, _| below(other, &path).is_none());
                zeros(out, 20);
            }
            Op4::Rename | Op4::Link => {
                let moves = argument.op == Op4::Rename;
                let (from, there) = match moves {
                    true => self.named(saved.as_ref(), name(0))?,
                    false => (self.there(saved.as_ref())?.0, true),
                };
                there.then_some(()).ok_or(status::NOENT)?;
                let (to, _) = self.named(current.as_ref(), name(usize::from(moves)))?;
                if below(&to, &from).is_some() || from.is_empty() {
                    return Err(status::INVAL);
                }
                let found = self
                    .nodes
                    .iter()
                    .filter_map(|(path, node)| Some(([&to[..], below(path, &from)?].concat(), node.clone())));
                let found: Vec<_> = found.collect();
                self.nodes
                    .retain(|path, _| below(path, &to).is_none() && (!moves || below(path, &from).is_none()));
                self.nodes.extend(found);
                zeros(out, if moves { 40 } else { 20 });
            }
            Op4::Create => {
                let (path, there) = self.named(current.as_ref(), name(0))?;
                (!there).then_some(()).ok_or(status::EXIST)?;
                self.put(&path, true);
                *current = Some(path);
                zeros(out, 24);
            }
            Op4::Open => self.open(argument, name(0), current, out)?,
            Op4::Close => zeros(out, 16),
            _ => return Err(status::NOTSUPP),
        }
        Ok(())
    }

    fn open(
        &mut self,
        argument: &Argument,
        name: &[u8],
        current: &mut Option<Vec<u8>>,
        out: &mut Vec<u8>,
    ) -> Result<(), u32> {
        let open = argument.open.unwrap();
        let path = match open.claim {
            0 => {
                let (path, there) = self.named(current.as_ref(), name)?;
                match (there, open.how_at.is_some()) {
                    // Whoever knows the times of a file knows the verifier that takes it as made by himself.
                    (true, true) if !matches!(open.how, 0 | 3) => return Err(status::EXIST),
                    (false, false) => return Err(status::NOENT),
                    (false, true) => self.put(&path, false),
                    _ => {}
                }
                path
            }
            _ => self.there(current.as_ref())?.0,
        };
        if open.sized {
            self.nodes.get_mut(&path).unwrap().data.clear();
        }
        *current = Some(path);
        put_u32(out, 1);
        out.resize(out.len() + 12 + 20, 0);
        [0, 0, 0].into_iter().for_each(|word| put_u32(out, word));
        Ok(())
    }

    fn list(
        &self,
        argument: &Argument,
        record: &[u8],
        folder: Option<&Vec<u8>>,
        out: &mut Vec<u8>,
    ) -> Result<(), u32> {
        let (folder, _) = self.there(folder)?;
        put_u64(out, 0);
        for (number, (path, node)) in self.nodes.iter().enumerate() {
            let name = below(path, &folder).and_then(|rest| rest.strip_prefix(b"/"));
            let Some(name) = name.filter(|name| !name.contains(&b'/')) else { continue };
            put_u32(out, 1);
            put_u64(out, number as u64 + 10);
            put_opaque(out, name);
            put_attributes(path, node, argument.wanted.unwrap().of(record), out);
        }
        [0, 1].into_iter().for_each(|word| put_u32(out, word));
        Ok(())
    }
}

fn put_attributes(path: &[u8], node: &Node, wanted: &[u8], out: &mut Vec<u8>) {
    let mut values = Vec::new();
    let mut words = [0u32; 2];
    for attribute in
        [1u32, 4, 8, 19, 20, 33, 36, 37, 53].into_iter().filter(|number| has_bit(wanted, *number))
    {
        words[attribute as usize / 32] |= 1 << (attribute % 32);
        match attribute {
            1 => put_u32(&mut values, if node.folder { 2 } else { 1 }),
            4 => put_u64(&mut values, node.data.len() as u64),
            8 => [7, 9].into_iter().for_each(|part| put_u64(&mut values, part)),
            19 => put_opaque(&mut values, &[HANDLE, path].concat()),
            20 => {
                put_u64(&mut values, path.iter().fold(7, |sum, byte| sum * 31 % 999_983 + u64::from(*byte)))
            }
            33 => put_u32(&mut values, node.mode),
            53 => {
                put_u64(&mut values, node.seconds.into());
                put_u32(&mut values, 0);
            }
            _ => put_opaque(&mut values, b"0"),
        }
    }
    [2, words[0], words[1]].into_iter().for_each(|word| put_u32(out, word));
    put_opaque(out, &values);
}
