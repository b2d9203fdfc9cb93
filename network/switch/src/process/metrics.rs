//! Counters of the switch in the text format of Prometheus: under names in base units, each with what it is.
//!
//! Counters have names and whole numbers on their way from the switch, some in thousandths of a second. What is said of each is
//! here; docs/operate/metrics.md says more. A name that is not here is of another release, and counts.

use crate::durations::BOUNDS_US;
use std::collections::BTreeMap;
use weir_base::exposition::{Exposition, Kind};

/// Names of counters, what they are, and what of. Sorted.
const FAMILIES: [(&str, Kind, &str); 139] = [
    ("answers", Kind::Counter, "Packets answered by the switch itself, such as ARP."),
    ("attach_failures", Kind::Counter, "Devices that could not be attached to."),
    ("checkpoint_compactions", Kind::Counter, "Compactions of the checkpoint."),
    ("checkpoint_cut_bytes", Kind::Counter, "Bytes cut off at the last start because a record was torn."),
    ("checkpoint_errors", Kind::Counter, "Failures of the checkpoint; nothing is acked meanwhile."),
    ("clients_dropped", Kind::Counter, "Clients of the control socket that did not read."),
    ("clients_malformed", Kind::Counter, "Clients of the control socket that sent what is no frame."),
    ("clients_refused", Kind::Counter, "Clients of the control socket that were too many."),
    (
        "connection_journal_overflows",
        Kind::Counter,
        "Changes of connections that the journal missed until its next compaction.",
    ),
    ("connections", Kind::Gauge, "Connections tracked now."),
    ("connections_bytes", Kind::Gauge, "Memory of the table of connections."),
    ("connections_evicted", Kind::Counter, "Connections taken out for want of room."),
    ("connections_expired", Kind::Counter, "Connections that ended or were idle."),
    ("connections_not_restored", Kind::Counter, "Connections of the journal that no longer pass."),
    ("connections_opened", Kind::Counter, "Connections opened."),
    ("connections_refused", Kind::Counter, "Connections refused for want of room."),
    ("connections_restored", Kind::Counter, "Connections taken back from the journal at the last start."),
    ("connections_revoked", Kind::Counter, "Connections cut because a rule was."),
    ("counters", Kind::Gauge, "Named counters in use now."),
    ("drops", Kind::Counter, "Packets dropped, by reason, and by network and rule where a rule decided."),
    ("drops_bytes", Kind::Counter, "Bytes of packets dropped."),
    ("engine_answers", Kind::Counter, "Packets that the engine answered."),
    (
        "engine_busy_ns",
        Kind::Counter,
        "Seconds of turns that had something to do, without the wait for it: of a processor of its own, what is left is what it can still take.",
    ),
    ("engine_capture_lost", Kind::Counter, "Frames that a capture had no room for."),
    (
        "engine_contained",
        Kind::Counter,
        "Faults of the switch at one frame that cost only that frame and those read with it.",
    ),
    (
        "engine_fragment_evictions",
        Kind::Counter,
        "Fragmented datagrams that were forgotten for want of room; their later fragments are dropped as fragment-early.",
    ),
    ("engine_fragments", Kind::Counter, "Later fragments that followed their first one."),
    (
        "engine_fragments_held",
        Kind::Counter,
        "Later fragments that came before their first one, and waited for it.",
    ),
    (
        "engine_fragments_held_lost",
        Kind::Counter,
        "Of fragments that were held, those whose first one did not come in time, or that made room for others; dropped as fragment-early.",
    ),
    (
        "engine_gaps_closed",
        Kind::Counter,
        "Frames read with room for the headers of their segments that were of another shape, and were closed up: many say that ports mix segment sizes.",
    ),
    ("engine_guest_interrupts", Kind::Counter, "Interrupts of virtual machines."),
    (
        "engine_guest_memory_lost",
        Kind::Counter,
        "Virtual machines that took back the memory that they had lent.",
    ),
    (
        "engine_guest_nonsense",
        Kind::Counter,
        "Chains of descriptors of virtual machines that made no sense; each costs its own frame.",
    ),
    (
        "engine_guest_queues_broken",
        Kind::Counter,
        "Queues of virtual machines with an index that cannot be; served again when the driver starts anew.",
    ),
    (
        "engine_left_waiting",
        Kind::Counter,
        "Frames dropped at the start because they waited in the device that the process before had in hand when it ended.",
    ),
    ("engine_merged_frames", Kind::Counter, "Frames joined before they were written to a device."),
    ("engine_misses", Kind::Counter, "Packets without a flow, given to the slow path."),
    ("engine_port_reads", Kind::Counter, "Reads from devices."),
    ("engine_port_writes", Kind::Counter, "Writes to devices."),
    (
        "engine_quarantines",
        Kind::Counter,
        "Ports taken out of traffic because the handling of their frames failed again.",
    ),
    ("engine_reinjected", Kind::Counter, "Packets that came back from the slow path."),
    ("engine_segmentation_fallbacks", Kind::Counter, "Large segments cut here because the kernel would not."),
    ("engine_sleeps", Kind::Counter, "Turns that waited for work."),
    (
        "engine_spread_frames",
        Kind::Counter,
        "Large segments read with room for the headers of their pieces, and sent as one block.",
    ),
    ("engine_super_frames", Kind::Counter, "Large segments kept whole."),
    ("engine_table_swaps", Kind::Counter, "Tables taken over from the slow path."),
    ("engine_turns", Kind::Counter, "Turns of the loop."),
    ("engine_underlay_datagrams", Kind::Counter, "Datagrams from the underlay."),
    ("engine_underlay_receives", Kind::Counter, "Receive calls on the underlay."),
    ("engine_underlay_segments", Kind::Counter, "Datagrams to the underlay."),
    ("engine_underlay_sends", Kind::Counter, "Send calls on the underlay."),
    ("engine_urgency_refused", Kind::Counter, "The engine may not go before others: it has no CAP_SYS_NICE."),
    (
        "engine_urgent",
        Kind::Counter,
        "Times that the engine left bulk behind and went before others on its processor.",
    ),
    (
        "engine_wire_datagrams",
        Kind::Counter,
        "Datagrams of other switches that came by AF_XDP, not by a socket.",
    ),
    (
        "engine_wire_segments",
        Kind::Counter,
        "Datagrams to other switches that went by AF_XDP, of all that went to the underlay.",
    ),
    (
        "events_unnumbered",
        Kind::Counter,
        "Events not told because the state directory took no number for them.",
    ),
    ("external_rx_frames", Kind::Counter, "Frames from outside, at a gateway."),
    ("external_tx_frames", Kind::Counter, "Frames to the outside, at a gateway."),
    (
        "fault_write_errors",
        Kind::Counter,
        "Times that frames whose handling failed could not be written to the state directory.",
    ),
    ("faults", Kind::Counter, "Frames whose handling failed, of the engine and of the slow path."),
    ("faults_of_slow_path", Kind::Counter, "Those of the slow path."),
    (
        "flow_dependents_bytes",
        Kind::Gauge,
        "Of the memory of the flow table, what leads from a change to the flows that hang on it.",
    ),
    (
        "flow_table_bytes",
        Kind::Gauge,
        "Memory of the flow table, both copies of its index and what the slow path notes of flows.",
    ),
    ("flows", Kind::Gauge, "Flows installed."),
    (
        "flows_decided_again",
        Kind::Counter,
        "Flows decided again because something changed that they hang on, by what changed.",
    ),
    ("flows_idle", Kind::Counter, "Flows taken out because nothing used them."),
    (
        "flows_invalidated",
        Kind::Counter,
        "Of the flows decided again, those taken out for their next packet to decide.",
    ),
    (
        "flows_looked_at",
        Kind::Counter,
        "Flows looked at to find those that are to be decided again, by what changed.",
    ),
    ("flows_not_installed", Kind::Counter, "Flows decided and not installed because the table was full."),
    (
        "flows_replaced",
        Kind::Counter,
        "Of the flows decided again, those that got another action in their place.",
    ),
    ("gateway_probes", Kind::Counter, "Probes sent to a gateway, which a gateway that forwards sends back."),
    ("gateway_probes_unanswered", Kind::Counter, "Of these, probes that nothing came back of in time."),
    ("gateway_silences", Kind::Counter, "Times that a gateway was found to send nothing back."),
    (
        "gateway_silent",
        Kind::Gauge,
        "1 for a gateway that sends nothing back to this host, whose conversations go to the others.",
    ),
    (
        "guest_memory_refused",
        Kind::Counter,
        "Times that a virtual machine was refused because the switch had touched as much of its memory first as it may.",
    ),
    (
        "guest_memory_touched_bytes",
        Kind::Gauge,
        "Bytes of virtual machines' memory that the switch was the first to touch, and is charged for.",
    ),
    (
        "handover_blackout_us",
        Kind::Gauge,
        "How long nobody served when this process took over, as it saw it; 0 if it did not.",
    ),
    ("handover_brownout_us", Kind::Gauge, "How long it copied before that."),
    ("handover_connections", Kind::Gauge, "Connections that it took over."),
    (
        "handover_frames_left",
        Kind::Counter,
        "Frames that the slow path had no time for before another process took over.",
    ),
    ("handover_guests_left", Kind::Gauge, "Virtual machines that it could not take over: they connect anew."),
    (
        "handover_kills",
        Kind::Counter,
        "Processes that were killed because they had taken everything over and did not say that they serve.",
    ),
    ("handover_taken_over", Kind::Gauge, "Whether this process took over from another."),
    ("handovers_begun", Kind::Counter, "Processes that wanted to take over from this one."),
    ("handovers_failed", Kind::Counter, "Those that did not: in the brownout, or in the blackout."),
    ("inject_overflow", Kind::Counter, "Frames of the slow path that found no room to the engine."),
    ("journal_bytes", Kind::Gauge, "Length of the journal of connections."),
    ("journal_cut_bytes", Kind::Counter, "Bytes cut off it at the last start."),
    ("journal_errors", Kind::Counter, "Failures to write it."),
    ("misses_late", Kind::Counter, "Misses whose flow was there already."),
    ("misses_resolved", Kind::Counter, "First packets of flows, decided by the slow path."),
    (
        "packets_in_told",
        Kind::Counter,
        "Packets told to the controllers: questions, and of learned networks ports that begin to send, and answers.",
    ),
    ("packets_in_untold", Kind::Counter, "Packets that were not told because too many waited."),
    ("parse_errors", Kind::Counter, "Packets that cannot be parsed, by error."),
    ("passed", Kind::Counter, "Packets let through, by the way that they took."),
    ("passed_bytes", Kind::Counter, "Bytes of packets let through."),
    ("port_memory_lent_bytes", Kind::Gauge, "Bytes of memory that the port's virtual machine lends."),
    (
        "port_memory_touched_bytes",
        Kind::Gauge,
        "Bytes of it that the switch was the first to touch, and is charged for.",
    ),
    ("port_rx_bytes", Kind::Counter, "Bytes from the endpoint."),
    ("port_rx_frames", Kind::Counter, "Frames from the endpoint."),
    ("port_tx_bytes", Kind::Counter, "Bytes to the endpoint."),
    ("port_tx_frames", Kind::Counter, "Frames to the endpoint."),
    ("port_up", Kind::Gauge, "Whether the port carries traffic."),
    ("proofs_ahead", Kind::Counter, "Proofs of batches found right before an update under them came."),
    ("punt_lost", Kind::Counter, "Frames for the agent that it did not take."),
    ("punt_refused", Kind::Counter, "Frames of the agent that were not for a port."),
    ("punted", Kind::Counter, "Frames for the agent: DHCP and names."),
    (
        "question_drops",
        Kind::Counter,
        "Frames for unknown destinations of learned networks, or for virtual addresses without a turn, that were dropped: questions, network-questions and port-questions (too many open, of the switch, the network or the port), rate (the port asks too often), held (enough frames wait), no-answer, port-gone.",
    ),
    (
        "question_us",
        Kind::Histogram,
        "Time from the first frame for an unknown destination to its place in force.",
    ),
    ("questions_answered", Kind::Counter, "Questions that were answered."),
    (
        "questions_asked",
        Kind::Counter,
        "Unknown destinations, and turns of virtual addresses, that the controllers were asked about.",
    ),
    ("questions_given_up", Kind::Counter, "Questions that nobody answered."),
    ("questions_held_bytes", Kind::Gauge, "Bytes of the frames that wait for answers."),
    ("questions_held_frames", Kind::Gauge, "Frames that wait for answers."),
    ("questions_open", Kind::Gauge, "Questions that are open."),
    ("questions_released", Kind::Counter, "Frames that went on after an answer."),
    ("questions_repeated", Kind::Counter, "Questions asked again."),
    ("sender_zones", Kind::Gauge, "Senders of the underlay with flows."),
    (
        "switches_list_told",
        Kind::Gauge,
        "1 when the controllers told where switches are: what comes encapsulated from elsewhere is dropped.",
    ),
    ("switches_listed", Kind::Gauge, "Switches of the own domain that are known by that list."),
    ("turns", Kind::Gauge, "Clients of virtual addresses whose member is known here."),
    (
        "underlay_by_sockets",
        Kind::Counter,
        "Datagrams that went by a socket although there is AF_XDP, by reason.",
    ),
    (
        "underlay_hop_maps",
        Kind::Counter,
        "Maps of next hops that the engine was given: many say that neighbours or routes change all the time.",
    ),
    ("underlay_hops", Kind::Gauge, "Receivers whose next hop is known, or was looked for."),
    (
        "underlay_hops_too_many",
        Kind::Counter,
        "Receivers that there was no room for; what is for them goes by sockets.",
    ),
    (
        "underlay_kernel_failed",
        Kind::Counter,
        "Questions about routes and neighbours that the kernel did not answer.",
    ),
    (
        "underlay_refused",
        Kind::Counter,
        "Times that AF_XDP could not be had on the underlay's device; it is tried again.",
    ),
    (
        "underlay_way",
        Kind::Gauge,
        "How the underlay goes where AF_XDP is wanted: af-xdp-copy, af-xdp-zero-copy, or sockets with the reason.",
    ),
    ("underlay_wire_lost", Kind::Counter, "Frames of the underlay that the rings had no room for."),
    ("underlay_wire_queues", Kind::Gauge, "Queues of the device whose datagrams come by AF_XDP."),
    ("update_us", Kind::Histogram, "Time from an update frame to its ack."),
    ("updates_applied", Kind::Counter, "Updates applied."),
    ("updates_endorsed", Kind::Counter, "Updates applied because enough controllers endorsed them."),
    (
        "updates_endorsed_badly",
        Kind::Counter,
        "Of the forged ones, those under endorsements: wrong ones, or of controllers that are not in force here.",
    ),
    ("updates_forged", Kind::Counter, "Updates whose signature did not verify."),
    (
        "updates_not_restored",
        Kind::Gauge,
        "Updates of the checkpoint that the switch refuses now: none is told as in force.",
    ),
    ("updates_refused", Kind::Counter, "Updates refused for another reason."),
    ("updates_repeated", Kind::Counter, "Updates that were in force already."),
    ("usage_left_out", Kind::Counter, "Destinations left out of a usage report that was full."),
];

/// What a counter of another release is said to be.
const UNKNOWN: &str = "A counter of the switch.";

/// Name in the text, and by how much its numbers are divided, of one as the switch has it. `None`: what it says is in a histogram.
fn in_base_units(name: &str) -> Option<(String, f64)> {
    if name.ends_with("_us_max") {
        return None;
    }
    Some(match (name.strip_suffix("_us"), name.strip_suffix("_ns")) {
        (Some(stem), _) => (format!("{stem}_seconds"), 1e6),
        (_, Some(stem)) => (format!("{stem}_seconds"), 1e9),
        (None, None) => (name.to_string(), 1.0),
    })
}

/// Name and labels of a counter.
fn parts(name: &str) -> (&str, Vec<(&str, &str)>) {
    let Some((family, labels)) = name.split_once('{') else { return (name, Vec::new()) };
    let labels = labels.trim_end_matches('}').trim_end_matches('"');
    // Values are names of resources and of reasons, which have no quotes.
    (family, labels.split("\",").filter_map(|label| label.split_once("=\"")).collect())
}

/// How many were in each part of a histogram.
type Counts = [u64; BOUNDS_US.len() + 1];

/// Counters in the text format of Prometheus.
pub fn metrics_text(counters: &[(String, u64)]) -> String {
    exposition(counters).text()
}

fn exposition(counters: &[(String, u64)]) -> Exposition {
    let mut all = Exposition::new();
    let mut histograms: BTreeMap<&str, (Counts, u64)> = BTreeMap::new();
    for (counter, value) in counters {
        let (name, labels) = parts(counter);
        let (kind, help) = match FAMILIES.binary_search_by_key(&name, |(name, ..)| name) {
            Ok(at) => (FAMILIES[at].1, FAMILIES[at].2),
            Err(_) => (Kind::Counter, UNKNOWN),
        };
        if let Some((of, bound)) = name.strip_suffix("_part").zip(labels.first().map(|(_, bound)| *bound)) {
            let at = bound
                .parse()
                .map_or(BOUNDS_US.len(), |us: u64| BOUNDS_US.partition_point(|bound| *bound < us));
            histograms.entry(of).or_default().0[at] += value;
            continue;
        }
        if kind == Kind::Histogram {
            histograms.entry(name).or_default().1 = *value;
            continue;
        }
        let Some((shown, divisor)) = in_base_units(name) else { continue };
        let suffix = if kind == Kind::Counter { "_total" } else { "" };
        all.put(&format!("weir_switch_{shown}{suffix}"), kind, help, &labels, *value as f64 / divisor);
    }
    let bounds = BOUNDS_US.map(|us| us as f64 / 1e6);
    for (name, (counts, sum_us)) in histograms {
        let help = FAMILIES.iter().find(|(of, ..)| *of == name).map_or(UNKNOWN, |(_, _, help)| help);
        let Some((shown, divisor)) = in_base_units(name) else { continue };
        all.histogram(&format!("weir_switch_{shown}"), help, &[], &bounds, &counts, sum_us as f64 / divisor);
    }
    all
}

#[cfg(test)]
mod tests;
