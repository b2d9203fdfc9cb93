//! A guest that hangs: from the moment that its processors stand still to the alarm, with the fence done. Its emulator is stopped, so
//! that nothing of it runs.

use crate::cage::Watched;
use crate::vm::Vm;
use rustix::process::Signal;
use weir_monitor::audit::What;
use weir_sensor::now_ns;

/// The row.
pub fn run(rounds: usize) {
    let (mut noticed, mut fenced) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let vm = match Vm::boot() {
            Ok(vm) => vm,
            Err(reason) => return println!("NOT RUN bench guests: {reason}"),
        };
        let at = |name: &str| vm.folder.path().join(name).display().to_string();
        let text = format!(
            "kind: guest\nname: vm\nmemory-file: {}\nqmp: {}\nstimulus: console:{}\nperiod-ms: 40\nperiods: 3\n\
             watch-ms: 200\naction: pause\ndry-run: false\n",
            vm.memory.display(),
            at("qmp"),
            at("console")
        );
        let watched = Watched::start(&text, false).unwrap();
        crate::cage::until("some stimuli", || watched.monitor.status().guests[0].stimuli >= 5);
        let before = watched.monitor.status().alarms;
        let start = now_ns();
        vm.signal(Signal::STOP);
        let mut alarm = None;
        crate::cage::until("the alarm", || {
            alarm = watched.monitor.recent().into_iter().find_map(|entry| match entry.what {
                What::Guest(alarm) => Some(alarm),
                _ => None,
            });
            alarm.is_some()
        });
        let told = now_ns().saturating_sub(start) as f64 / 1e6;
        let alarm = alarm.unwrap();
        noticed.push(told - alarm.act_us as f64 / 1e3);
        fenced.push(told - (alarm.act_us - alarm.fence_us) as f64 / 1e3);
        assert_eq!((before, alarm.fenced), (0, Some(true)), "a false alarm, or no fence");
    }
    crate::figure("guest_hang_noticed", "ms", &noticed, 400.0);
    crate::figure("guest_hang_fenced", "ms", &fenced, 1000.0);
}
