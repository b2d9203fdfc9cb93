//! What a person can type once the lab is up.

use super::place::{OUTSIDE_V4, Place};
use super::{programs, resources_path};
use weir_lab::Scope;

/// The commands, with what each shows.
pub fn text(place: Place, scope: &Scope) -> String {
    let own = std::env::current_exe().map_or("weir".to_string(), |path| path.display().to_string());
    let prefix = place.prefix();
    let instance = place.arguments();
    let controller = place.founders()[0].name;
    let run = programs::run(scope, &super::place::HOSTS[0]);
    let resources = resources_path(scope).display().to_string();
    let app = format!("ip netns exec {prefix}red-app");
    let lines = [
        (format!("{app} ping web"), "from red's app on h2 to red's web on h1"),
        (format!("{app} curl http://10.1.0.10/"), "red's page; blue has the same address"),
        (format!("ip netns exec {prefix}blue-app curl http://10.1.0.10/"), "blue's page"),
        (format!("{app} curl http://{OUTSIDE_V4}/caller"), "the address that the outside sees"),
        ("weir status".to_string(), "desired, acked and in force, switch by switch"),
        ("weir get all".to_string(), "the resources; also one kind: endpoints, firewall-rules, …"),
        ("weir trace red/app web -p tcp --port 8080".to_string(), "why a packet does not arrive"),
        ("weir counters h1 drop".to_string(), "drops by reason and rule"),
        ("weir capture h1 --port red/web -w - | tcpdump -nr -".to_string(), "frames of a port"),
        (format!("weir apply -f {resources}"), "change that file first: the plan is shown"),
        ("weir watch".to_string(), "changes as they happen, in another shell"),
        (format!("kill -9 $(cat {}/switch.pid)", run.display()), "it restarts from its checkpoint"),
        (format!("weir lab kill {controller}{instance}"), "traffic goes on"),
        (format!("weir lab start {controller}{instance}"), "nothing is reprogrammed"),
        (format!("weir lab run{instance}"), "all checks once more"),
        (format!("weir lab down{instance}"), "ends the lab"),
    ];
    let mut lines = lines.to_vec();
    if place.grouped() {
        let at = lines.iter().position(|(command, _)| command.contains("lab kill")).unwrap_or(lines.len());
        lines.insert(at, ("weir group list".to_string(), "the controllers, and who leads"));
    }
    let width = lines.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
    let mut text = format!("To play, with 'weir' for {own}:\n");
    let context = match place.is_usual() {
        true => format!("{}  # or say --lab with each command", super::CONTEXT_LINK),
        false => programs::context_path(scope, place).display().to_string(),
    };
    text.push_str(&format!("  export WEIR_CONTEXT={context}\n"));
    for (command, shows) in lines {
        text.push_str(&format!("  {command:<width$}  # {shows}\n"));
    }
    text
}
