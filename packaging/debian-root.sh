# shellcheck shell=bash
# Makes a fresh Debian root from this machine's own apt sources. Sourced by fresh-machine.sh and units-in-guest.sh,
# which set: suite, work (a folder of their own), root (in it), and the functions say and die.
#   WEIR_FRESH_CACHE=FILE.tar         keep the bare root there and take it from there the next time

: "${suite:?}" "${work:?}" "${root:?}"

# The lines of this machine's apt sources that are Debian's own, as one-line entries: "URI suite components".
debian_sources() {
  # One-line style: deb [options] URI suite component...
  { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null || true; } |
    sed -nE 's/^deb +(\[[^]]*\] +)?([^ ]+) +([^ ]+) +(.*)$/\2 \3 \4/p'
  # Deb822 style: stanzas of URIs, Suites, Components.
  { cat /etc/apt/sources.list.d/*.sources 2>/dev/null || true; } | awk '
    function flush(   i, n, s) { n = split(suites, s, " ");
      for (i = 1; i <= n; i++) if (types ~ /(^| )deb( |$)/) print uri, s[i], components;
      types = uri = suites = components = "" }
    /^Types:/ { if (uri != "") flush(); sub(/^[^:]*: */, ""); types = $0; next }
    /^URIs:/ { uri = $2 } /^Suites:/ { sub(/^[^:]*: */, ""); suites = $0 }
    /^Components:/ { sub(/^[^:]*: */, ""); components = $0 }
    /^$/ { if (uri != "") flush() } END { if (uri != "") flush() }'
}

# A bare root in $root.
make_root() {
  local sources mirror
  sources=$(debian_sources | awk -v s="$suite" '$2 ~ "^" s "(-|$)"')
  mirror=$(awk -v s="$suite" '$2 == s { print $1; exit }' <<< "$sources")
  [ -n "$mirror" ] || die "no apt source for $suite on this machine (looked in /etc/apt/sources.list*)"
  mkdir -p "$root"
  if [ -n "${WEIR_FRESH_CACHE:-}" ] && [ -f "$WEIR_FRESH_CACHE" ]; then
    say "unpacking the bare root from the cache"
    tar -C "$root" -xpf "$WEIR_FRESH_CACHE"
  else
    say "debootstrap $suite"
    debootstrap --variant=minbase --include=ca-certificates,make "$suite" "$root" "$mirror" > "$work/debootstrap.log" 2>&1 ||
      { tail -20 "$work/debootstrap.log" >&2; die "debootstrap failed"; }
    if [ -n "${WEIR_FRESH_CACHE:-}" ]; then tar -C "$root" -cpf "$WEIR_FRESH_CACHE" .; fi
  fi
  rm -f "$root/etc/apt/sources.list"
  # One entry a line, each with its own suite, so that security and point updates are those of a real machine.
  awk '{ print "deb " $0 }' <<< "$sources" > "$root/etc/apt/sources.list.d/debian.list"
  # What an installed Debian has and debootstrap leaves out: nfs-ganesha finds no file system without mtab, and names of this
  # machine would be asked of the network without hosts.
  [ -e "$root/etc/mtab" ] || ln -s ../proc/self/mounts "$root/etc/mtab"
  [ -e "$root/etc/hosts" ] ||
    printf '127.0.0.1\tlocalhost\n127.0.1.1\t%s\n::1\tlocalhost ip6-localhost ip6-loopback\n' "$(hostname)" > "$root/etc/hosts"
}
