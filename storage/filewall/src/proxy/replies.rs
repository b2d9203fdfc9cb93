//! What happens to replies: find the call, show both to the policies that saw it, pass on.

use super::env::Env;
use super::flow::{BadRecord, Source};
use super::inbox::Delivery;
use super::pending::{Entry, Question};
use super::retransmit::{self, Waiter};
use super::session::{Client, Session};
use super::settle;
use crate::message::Reply;
use crate::metrics::Totals;
use crate::wire::answer;
use crate::wire::nfs3::{Op, PAYLOAD_BYTES_MAX, Status};
use crate::wire::reply::results;
use crate::wire::rpc::{LAST_FRAGMENT, reply_head};
use crate::wire::xdr::{Reader, Wrong};

/// Longest payload of a READ or WRITE over UDP, bytes: a reply must fit a datagram.
pub const DATAGRAM_PAYLOAD_BYTES_MAX: usize = 32 << 10;

pub(super) enum Done {
    More,
    Skip,
    Forward(usize),
    Lost,
}

impl Session {
    /// Deals with the replies that have come, as far as there is room.
    pub(super) fn replies(&mut self, env: &mut Env<'_>) {
        while !self.ended && self.s2c.pass_body() && self.s2c.output.bytes() < super::flow::BACKLOG_BYTES_MAX
        {
            let source = match self.s2c.next_record() {
                Ok(Some(source)) => source,
                Ok(None) => break,
                Err(BadRecord) => {
                    Totals::count(&env.shared.totals.bad_replies_total);
                    tracing::warn!("the server sent a record that is too long: the session ends");
                    return self.end(env);
                }
            };
            match self.reply(source, env) {
                Done::Skip => self.s2c.done(source, 0, false),
                Done::Forward(head_end) => self.s2c.done(source, head_end, true),
                Done::Lost => return self.end(env),
                Done::More => {
                    self.s2c.want_more(source);
                    break;
                }
            }
        }
    }

    fn reply(&mut self, source: Source, env: &mut Env<'_>) -> Done {
        let totals = &env.shared.totals;
        let whole = self.s2c.is_whole(source);
        let Session { s2c, pending, client, address, .. } = self;
        let (record, record_bytes, output) = s2c.record(source);
        let mut reader = Reader::new(record, record_bytes);
        let head = match reply_head(&mut reader) {
            Ok(head) => head,
            Err(Wrong::Incomplete) => return Done::More,
            Err(wrong) => {
                Totals::count(&totals.bad_replies_total);
                tracing::warn!(%wrong, "the server sent what is no reply: the session ends");
                return Done::Lost;
            }
        };
        let Some(entry) = pending.get(head.xid) else {
            Totals::count(&totals.late_replies_total);
            return Done::Skip;
        };
        let asked = match &entry.asked {
            Question::Compound(_) => return self.compound_reply(source, head, env),
            Question::Own4(_) => return self.answered(source, head, env),
            Question::Own(_) | Question::Overtaken(_) => return self.own_reply(source, head, env),
            Question::Call(asked, _) => asked,
        };
        let op = asked.op;
        // A datagram is sent at once, and an answer that is remembered is remembered whole.
        if !whole && (matches!(client, Client::Udp) || entry.once.is_some() || head.results_at.is_none()) {
            return Done::More;
        }
        let read = match head.results_at {
            None => Ok(()),
            Some(_) => results(&mut reader, op, env.results),
        };
        if matches!(read, Err(Wrong::Incomplete)) {
            return Done::More;
        }
        if entry.resent
            && head.results_at.is_some()
            && read.is_ok()
            && let Some(probe) = settle::overtaken(asked, env.results.status)
        {
            let status = Status::of(env.results.status);
            self.look_again(head.xid, status, probe, env);
            return Done::Skip;
        }
        let Some(Entry { asked: Question::Call(asked, handled), client_xid, chain, since_us, once, .. }) =
            pending.take(head.xid)
        else {
            return Done::Skip;
        };
        Totals::down(&totals.pending, 1);
        let latency_us = env.now.steady_us.saturating_sub(since_us);
        totals.reply(op, latency_us);
        let begin = output.heads_bytes();
        let mut forward = None;
        match (head.results_at, read) {
            (_, Err(wrong)) => {
                Totals::count(&totals.bad_replies_total);
                tracing::warn!(%op, %wrong, "the server sent results that are none");
                output.head(|out| answer::put(out, client_xid, op, Status::ServerFault));
            }
            // It was refused before anybody looked at what it asks for.
            (None, Ok(())) => {
                chain.undone(&asked, handled);
                output.head(|out| {
                    out.extend_from_slice(&((record_bytes as u32) | LAST_FRAGMENT).to_be_bytes());
                    out.extend_from_slice(&client_xid.to_be_bytes());
                    out.extend_from_slice(&record[4..]);
                });
            }
            (Some(results_at), Ok(())) => {
                let mut reply = Reply::new(record, record_bytes, env.results, env.entry_handles);
                if op == Op::Fsinfo {
                    clamp(&mut reply, asked.datagram);
                }
                chain.reply(&asked, &mut reply, handled, latency_us);
                let limit = usize::try_from(asked.maxcount).unwrap_or(usize::MAX);
                if let Some(status) = reply.failed {
                    output.head(|out| answer::put(out, client_xid, op, status));
                } else if output.head(|out| reply.put(client_xid, results_at, limit, out)) {
                    Totals::count(&totals.listings_cut_total);
                }
                let head_end = reply.head_end();
                if head_end < record_bytes && reply.failed.is_none() {
                    forward = Some(head_end);
                }
            }
        }
        if let Some(once) = once {
            tell_waiters(once, output.heads_from(begin), true, env);
        }
        match (client, forward) {
            (Client::Tcp(_), Some(head_end)) => Done::Forward(head_end),
            (Client::Tcp(_), None) => Done::Skip,
            (Client::Udp, _) => {
                env.datagram.clear();
                env.datagram.extend_from_slice(&output.heads_from(begin)[4..]);
                env.datagram.extend_from_slice(&record[forward.unwrap_or(record_bytes)..]);
                output.clear();
                let datagram = std::mem::take(env.datagram);
                env.send_datagram(&datagram, *address);
                *env.datagram = datagram;
                Done::Skip
            }
            (Client::Gone, _) => {
                output.clear();
                Done::Skip
            }
        }
    }
}

/// Sends the reply to a call that must happen once to the copies that wait, and remembers it for those to come if it `keeps`.
pub(super) fn tell_waiters(once: retransmit::Key, reply: &[u8], keeps: bool, env: &Env<'_>) {
    let (reply, waiters) = env.shared.retransmits.answered(once, reply, keeps, env.now.steady_us);
    for Waiter { worker, session, xid } in waiters {
        env.shared.deliver(worker, Delivery::Reply { session, xid, reply: reply.clone() });
    }
}

/// Keeps clients from asking for more at once than a record may have.
fn clamp(reply: &mut Reply<'_>, datagram: bool) {
    let Some(at) = reply.results.fsinfo_at else { return };
    let limit = if datagram { DATAGRAM_PAYLOAD_BYTES_MAX } else { PAYLOAD_BYTES_MAX };
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    // rtmax, rtpref, wtmax, wtpref, dtpref; the multiples between them stay.
    for word in [0, 1, 3, 4, 6] {
        let at = at + 4 * word;
        reply.set_word(at, reply.word(at).min(limit));
    }
}
