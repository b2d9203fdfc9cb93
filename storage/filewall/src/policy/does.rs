//! What an operation does besides what it is called: rules by operation are about what is done, not about the name of the call that does it.
//!
//! | operation | is also | because |
//! |---|---|---|
//! | SETATTR that sets the length | WRITE | what is behind the end is gone, or zeros are there |
//! | CREATE, OPEN that take a file which is there | LOOKUP | the client gets its handle |
//! | the same with a length | SETATTR, WRITE | the file that is there is cut |
//! | READDIRPLUS, READDIR of NFSv4 | READDIR | names are listed |
//! | OPEN of NFSv4, by a name | LOOKUP | the client gets its handle |
//! | OPEN for reading, for writing | READ, WRITE | that is what it is for |
//! | LOOKUPP of NFSv4 | LOOKUP | the client gets the parent's handle |
//! | LOCK, LOCKT of NFSv4 | GETATTR | they tell who has locked what of the file |
//! | REMOVE of NFSv4, of a folder | RMDIR, and not REMOVE | there is one operation for both |
//! | RENAME over a name that is there | REMOVE or RMDIR | what had the name is gone |
//!
//! The last two depend on what the server has: it is asked where rules tell the two removals apart ([`super::Policy::tells_removals`]),
//! and where it cannot be asked, both are meant. An operation of a COMPOUND may be shown several times, once for each object that it is
//! about; what it does in all is what all of these do.
//!
//! Not among them: the attributes that come with many replies of NFSv3, which are left out where GETATTR is denied
//! ([`super::Policy::hides`]), as are attributes and handles of listings where GETATTR or LOOKUP is.

use crate::wire::call::Arguments;
use crate::wire::nfs3::Op;

/// Both removals.
pub const REMOVALS: u32 = Op::Remove.bit() | Op::Rmdir.bit();

/// What an operation always does, whatever its arguments are, as bits.
pub const fn always(op: Op) -> u32 {
    match op {
        Op::Readdirplus => op.bit() | Op::Readdir.bit(),
        _ => op.bit(),
    }
}

/// All that an operation does, as bits.
pub fn does(arguments: &Arguments) -> u32 {
    let sized = arguments.set.size.is_some();
    let more = match arguments.op {
        Op::Setattr if sized => Op::Write.bit(),
        Op::Create if arguments.takes && sized => Op::Lookup.bit() | Op::Setattr.bit() | Op::Write.bit(),
        Op::Create if arguments.takes => Op::Lookup.bit(),
        _ => 0,
    };
    always(arguments.op) | arguments.also | more
}

/// The operations of a set, one after the other.
pub fn each(mut set: u32) -> impl Iterator<Item = Op> {
    std::iter::from_fn(move || {
        let op = Op::from_number(set.trailing_zeros())?;
        set &= set - 1;
        Some(op)
    })
}
