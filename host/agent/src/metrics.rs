//! What the agent counts, and the text that Prometheus reads (rows A15, A16).
//!
//! Every bounded queue and every drop of the crate has its counter here. Counters only rise while
//! the process lives; gauges say how things are now.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir_base::exposition::{Exposition, Kind};

/// A number that many tasks change.
#[derive(Debug, Default)]
pub struct Number(AtomicU64);

impl Number {
    /// Counts one.
    pub fn count(&self) {
        self.add(1);
    }

    /// Counts several.
    pub fn add(&self, many: u64) {
        self.0.fetch_add(many, Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper ends of the parts of [`Times`] but the last, seconds.
const TIMES_S: [f64; 9] = [0.000_1, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.5, 5.0];

/// How often something took how long.
#[derive(Debug, Default)]
pub struct Times {
    counts: [AtomicU64; TIMES_S.len() + 1],
    total_ns: AtomicU64,
}

impl Times {
    /// One more that took so long.
    pub fn took(&self, time: Duration) {
        let part = TIMES_S.partition_point(|bound| *bound < time.as_secs_f64());
        self.counts[part].fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn put(&self, text: &mut Exposition, name: &str, help: &str) {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let sum_s = self.total_ns.load(Ordering::Relaxed) as f64 / 1e9;
        text.histogram(name, help, &[], &TIMES_S, &counts, sum_s);
    }
}

macro_rules! metrics {
    ($($field:ident: $kind:ident $name:literal $labels:literal, $help:literal;)*) => {
        /// All counters and gauges of an agent.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $help] pub $field: Number,)*
            /// How long updates of a batch waited here for a quorum of controllers.
            pub quorum: Times,
        }

        impl Metrics {
            fn rows(&self) -> Vec<(&'static str, Kind, &'static str, &'static str, u64)> {
                vec![$(($name, Kind::$kind, $labels, $help, self.$field.get()),)*]
            }
        }
    };
}

metrics! {
    session_up: Gauge "weir_agent_session_up" "", "Whether a session with a controller is established.";
    sessions_established: Gauge "weir_agent_sessions_established" "", "Controllers with which a session is established.";
    session_connects: Counter "weir_agent_session_connects_total" "", "Attempts to reach a controller.";
    session_closes: Counter "weir_agent_session_closes_total" "", "Streams to a controller that ended.";
    session_protocol_errors: Counter "weir_agent_session_protocol_errors_total" "", "Streams ended because the controller broke the protocol.";
    session_frames_in: Counter "weir_agent_session_frames_total" "direction=\"in\"", "Frames with the controller.";
    session_frames_out: Counter "weir_agent_session_frames_total" "direction=\"out\"", "Frames with the controller.";
    session_dropped_acks: Counter "weir_agent_session_dropped_total" "what=\"acks\"", "Frames of the switch that had no session to go to.";
    session_dropped_events: Counter "weir_agent_session_dropped_total" "what=\"event\"", "Frames of the switch that had no session to go to.";
    session_dropped_answers: Counter "weir_agent_session_dropped_total" "what=\"answers\"", "Frames of the switch that had no session to go to.";
    session_questions_refused: Counter "weir_agent_session_questions_refused_total" "", "Questions refused because too many are open.";
    session_questions_expired: Counter "weir_agent_session_questions_expired_total" "", "Questions that the switch did not answer in time.";
    session_switch_resets: Counter "weir_agent_session_switch_resets_total" "", "Connections to the switch ended because it did not tell its state.";
    session_forgeries: Counter "weir_agent_session_forgeries_total" "", "Frames of updates, shares and endorsements of controllers that were forged.";
    session_conduct_reports: Counter "weir_agent_session_conduct_reports_total" "", "Reports to the other controllers of one whose session was ended for what it sent.";
    session_bad_conduct: Counter "weir_agent_session_bad_conduct_total" "", "Streams ended because of what the controller sent: forgeries again and again, and what is no frame.";
    session_states_delayed: Counter "weir_agent_session_states_delayed_total" "", "Requests for the whole state that came too fast and were served later.";
    session_paced: Counter "weir_agent_session_paced_total" "", "Times that a controller's stream was not read for a moment because it brought too much.";
    shares_combined: Counter "weir_agent_shares_total" "result=\"combined\"", "Signatures put together from controllers' shares or endorsements, and those that were not used.";
    shares_bad: Counter "weir_agent_shares_total" "result=\"bad\"", "Signatures put together from controllers' shares or endorsements, and those that were not used.";
    shares_dropped: Counter "weir_agent_shares_total" "result=\"dropped\"", "Signatures put together from controllers' shares or endorsements, and those that were not used.";
    planes_up: Gauge "weir_agent_planes_up" "", "Processes of planes beside the switch that are here.";
    planes_waiting: Gauge "weir_agent_plane_updates_waiting" "", "Updates for planes whose process is not here.";
    planes_came: Counter "weir_agent_plane_processes_total" "what=\"came\"", "Processes of planes that came and went.";
    planes_went: Counter "weir_agent_plane_processes_total" "what=\"went\"", "Processes of planes that came and went.";
    planes_given: Counter "weir_agent_plane_updates_total" "result=\"given\"", "Updates for planes: given to a process, refused because none takes them, or dropped, to come again.";
    planes_refused: Counter "weir_agent_plane_updates_total" "result=\"refused\"", "Updates for planes: given to a process, refused because none takes them, or dropped, to come again.";
    planes_dropped: Counter "weir_agent_plane_updates_total" "result=\"dropped\"", "Updates for planes: given to a process, refused because none takes them, or dropped, to come again.";
    renewals_done: Counter "weir_agent_certificate_renewals_total" "result=\"kept\"", "Renewals of this actuator's certificate.";
    renewals_failed: Counter "weir_agent_certificate_renewals_total" "result=\"failed\"", "Renewals of this actuator's certificate.";
    keys_changed: Counter "weir_agent_key_changes_total" "result=\"done\"", "Changes of this actuator's keys.";
    keys_not_changed: Counter "weir_agent_key_changes_total" "result=\"refused\"", "Changes of this actuator's keys.";
    certificate_until_s: Gauge "weir_agent_certificate_until_seconds" "", "When this actuator's certificate ends, seconds of the Unix epoch.";
    session_clock_faults: Counter "weir_agent_session_clock_faults_total" "", "Streams that did not come about because a certificate is out of its time by this machine's clock or the controller's.";
    session_queue_full: Counter "weir_agent_session_queue_full_total" "", "Streams ended because the controller did not read.";
    link_up: Gauge "weir_agent_switch_link_up" "", "Whether the switch's control socket is connected.";
    link_connects: Counter "weir_agent_switch_link_connects_total" "", "Connections made to the switch.";
    link_frames_in: Counter "weir_agent_switch_link_frames_total" "direction=\"in\"", "Frames with the switch.";
    link_frames_out: Counter "weir_agent_switch_link_frames_total" "direction=\"out\"", "Frames with the switch.";
    link_errors: Counter "weir_agent_switch_link_errors_total" "", "Connections to the switch that ended.";
    mirror_synced: Gauge "weir_agent_mirror_synced" "", "Whether the mirror of the switch's entries is complete.";
    mirror_entries: Gauge "weir_agent_mirror_entries" "", "Entries in the mirror.";
    mirror_changes: Counter "weir_agent_mirror_changes_total" "", "Changes taken over from the switch.";
    mirror_full: Counter "weir_agent_mirror_full_total" "", "Entries not mirrored because the mirror is full.";
    ports_ready: Gauge "weir_agent_ports" "state=\"ready\"", "Ports by the state of their device.";
    ports_waiting: Gauge "weir_agent_ports" "state=\"waiting\"", "Ports by the state of their device.";
    devices_created: Counter "weir_agent_devices_total" "what=\"created\"", "Devices handled.";
    devices_adopted: Counter "weir_agent_devices_total" "what=\"adopted\"", "Devices handled.";
    devices_removed: Counter "weir_agent_devices_total" "what=\"removed\"", "Devices handled.";
    devices_collected: Counter "weir_agent_devices_total" "what=\"collected\"", "Devices handled.";
    devices_failed: Counter "weir_agent_devices_total" "what=\"failed\"", "Devices handled.";
    links_listened: Gauge "weir_agent_namespaces_listened" "", "Namespaces in which the kernel tells of devices that go, come or are renamed.";
    links_changed: Counter "weir_agent_link_changes_total" "", "Times that it told so.";
    punt_in: Counter "weir_agent_punt_frames_total" "direction=\"in\"", "Punted frames.";
    punt_out: Counter "weir_agent_punt_frames_total" "direction=\"out\"", "Punted frames.";
    punt_malformed: Counter "weir_agent_punt_dropped_total" "reason=\"malformed\"", "Punted frames, and answers to them, that were dropped.";
    punt_unknown_port: Counter "weir_agent_punt_dropped_total" "reason=\"unknown-port\"", "Punted frames, and answers to them, that were dropped.";
    punt_spoofed: Counter "weir_agent_punt_dropped_total" "reason=\"spoofed\"", "Punted frames, and answers to them, that were dropped.";
    punt_unknown_service: Counter "weir_agent_punt_dropped_total" "reason=\"unknown-service\"", "Punted frames, and answers to them, that were dropped.";
    punt_unsent: Counter "weir_agent_punt_dropped_total" "reason=\"unsent\"", "Punted frames, and answers to them, that were dropped.";
    dhcp4_answered: Counter "weir_agent_dhcp_total" "family=\"v4\",result=\"answered\"", "DHCP messages.";
    dhcp4_malformed: Counter "weir_agent_dhcp_total" "family=\"v4\",result=\"malformed\"", "DHCP messages.";
    dhcp4_ignored: Counter "weir_agent_dhcp_total" "family=\"v4\",result=\"ignored\"", "DHCP messages.";
    dhcp6_answered: Counter "weir_agent_dhcp_total" "family=\"v6\",result=\"answered\"", "DHCP messages.";
    dhcp6_malformed: Counter "weir_agent_dhcp_total" "family=\"v6\",result=\"malformed\"", "DHCP messages.";
    dhcp6_ignored: Counter "weir_agent_dhcp_total" "family=\"v6\",result=\"ignored\"", "DHCP messages.";
    dns_local: Counter "weir_agent_dns_answers_total" "from=\"directory\"", "DNS queries of endpoints answered.";
    dns_cached: Counter "weir_agent_dns_answers_total" "from=\"cache\"", "DNS queries of endpoints answered.";
    dns_gateway: Counter "weir_agent_dns_answers_total" "from=\"gateway\"", "DNS queries of endpoints answered.";
    dns_upstream: Counter "weir_agent_dns_answers_total" "from=\"upstream\"", "DNS queries of endpoints answered.";
    dns_failed: Counter "weir_agent_dns_answers_total" "from=\"nobody\"", "DNS queries of endpoints answered.";
    dns_refused: Counter "weir_agent_dns_answers_total" "from=\"refusal\"", "DNS queries of endpoints answered.";
    dns_malformed: Counter "weir_agent_dns_dropped_total" "reason=\"malformed\"", "DNS queries dropped.";
    dns_busy: Counter "weir_agent_dns_dropped_total" "reason=\"too-many-outstanding\"", "DNS queries dropped.";
    dns_mismatched: Counter "weir_agent_dns_mismatched_total" "", "Datagrams that did not answer the query that was out.";
    dns_truncated: Counter "weir_agent_dns_truncated_total" "", "Answers too large for the asker, sent with TC.";
    dns_outstanding: Gauge "weir_agent_dns_outstanding" "", "Queries waiting for a gateway or an upstream resolver.";
    dns_tcp_connections: Gauge "weir_agent_dns_tcp_connections" "", "TCP connections of endpoints for DNS.";
    dns_tcp_accepted: Counter "weir_agent_dns_tcp_total" "what=\"accepted\"", "TCP connections of endpoints for DNS, and what came on them.";
    dns_tcp_refused: Counter "weir_agent_dns_tcp_total" "what=\"reset\"", "TCP connections of endpoints for DNS, and what came on them.";
    dns_tcp_idle: Counter "weir_agent_dns_tcp_total" "what=\"idle\"", "TCP connections of endpoints for DNS, and what came on them.";
    dns_tcp_malformed: Counter "weir_agent_dns_tcp_total" "what=\"malformed\"", "TCP connections of endpoints for DNS, and what came on them.";
    dns_tcp_queries: Counter "weir_agent_dns_tcp_total" "what=\"query\"", "TCP connections of endpoints for DNS, and what came on them.";
    dns_upstream_streams: Counter "weir_agent_dns_upstream_tcp_total" "", "Answers of resolvers that came over TCP because no datagram held them.";
    dns_served: Counter "weir_agent_dns_listener_total" "result=\"answered\"", "Queries of other agents at this gateway.";
    dns_served_bad: Counter "weir_agent_dns_listener_total" "result=\"malformed\"", "Queries of other agents at this gateway.";
    dns_strangers: Counter "weir_agent_dns_listener_total" "result=\"stranger\"", "Queries of other agents at this gateway.";
}

impl Metrics {
    /// All of it in Prometheus' text format.
    pub fn metrics_text(&self) -> String {
        let mut text = Exposition::new();
        for (name, kind, labels, help, value) in self.rows() {
            // As they are written above.
            let label =
                |label: &'static str| label.split_once('=').map(|(of, is)| (of, is.trim_matches('"')));
            let labels: Vec<(&str, &str)> = labels.split(',').filter_map(label).collect();
            text.put(name, kind, help, &labels, value as f64);
        }
        let help = "Time from the first update of a batch to enough controllers' word for it; 0 where it comes with the group's signature.";
        self.quorum.put(&mut text, "weir_agent_quorum_seconds", help);
        text.text()
    }
}

#[cfg(test)]
mod tests;
