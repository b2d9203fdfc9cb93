//! What every process tells of itself, by the names that Prometheus' clients use.

use weir_base::exposition::{Exposition, Kind};

/// Ticks of the clock in which the kernel counts processor time (`USER_HZ`), a second.
const TICKS_PER_S: f64 = 100.0;
/// Bytes of a page, where the kernel counts pages.
const PAGE_BYTES: u64 = 4_096;

/// The fields of `/proc/self/stat` behind the program's name, which may hold spaces.
fn fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default()
}

/// Release, processor time, memory, descriptors and start of this process, as Prometheus text.
pub fn metrics_text() -> String {
    let mut text = Exposition::new();
    let help = "The release that runs; its value is always 1.";
    text.put("weir_build_info", Kind::Gauge, help, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let mut put = |name: &str, kind: Kind, help: &str, value: f64| text.put(name, kind, help, &[], value);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let stat = read("/proc/self/stat");
    // Counted from the third field of proc(5), which is the first behind the name.
    let field = |number: usize| fields(&stat).get(number - 3).and_then(|value| value.parse::<u64>().ok());
    let (user, system, started) = (field(14), field(15), field(22));
    if let (Some(user), Some(system)) = (user, system) {
        let seconds = (user + system) as f64 / TICKS_PER_S;
        put("process_cpu_seconds_total", Kind::Counter, "Processor time that was used, seconds.", seconds);
    }
    if let Some(bytes) = field(23) {
        put("process_virtual_memory_bytes", Kind::Gauge, "Addresses that are in use, bytes.", bytes as f64);
    }
    if let Some(pages) = field(24) {
        let bytes = (pages * PAGE_BYTES) as f64;
        put("process_resident_memory_bytes", Kind::Gauge, "Memory that is in use, bytes.", bytes);
    }
    let booted = read("/proc/stat");
    let booted = booted.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    if let (Some(started), Some(booted)) = (started, booted) {
        let at = booted + started as f64 / TICKS_PER_S;
        put("process_start_time_seconds", Kind::Gauge, "When it began, seconds of the Unix epoch.", at);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        put("process_open_fds", Kind::Gauge, "Descriptors that are open.", open.count() as f64);
    }
    let limits = read("/proc/self/limits");
    let most = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok());
    if let Some(most) = most {
        put("process_max_fds", Kind::Gauge, "Descriptors that may be open.", most);
    }
    let spent = weir_base::world::spare::spent() as f64;
    put(
        "weir_descriptors_spent_total",
        Kind::Counter,
        "Descriptors kept ahead that were given up to open a file.",
        spent,
    );
    text.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_what_it_uses() {
        let text = metrics_text();
        for name in [
            "weir_build_info{",
            "process_cpu_seconds_total ",
            "process_resident_memory_bytes ",
            "process_open_fds ",
            "process_max_fds ",
            "process_start_time_seconds ",
        ] {
            let line = text.lines().find(|line| line.starts_with(name));
            let value: f64 = line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(-1.0);
            assert!(value >= 0.0, "{name}: {text}");
        }
        // The name is Prometheus' own.
        let others = text.lines().filter(|line| !line.contains("process_max_fds"));
        let others: Vec<&str> = others.collect();
        assert_eq!(weir_base::exposition::check(&others.join("\n")), []);
        // A name with spaces and brackets moves no field.
        assert_eq!(fields("12 (a) b (c) S 1 2"), ["S", "1", "2"]);
    }
}
