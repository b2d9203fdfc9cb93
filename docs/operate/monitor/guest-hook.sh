#!/bin/sh
# The hook of a guest: it does what the monitor outside asks for (action: hook). It uses only what the shell has built in, so it
# works when the guest can start no process any more. Start it early, on the port whose socket the host's policy names:
#   guest-hook.sh < /dev/ttyS2 > /dev/ttyS2
# It is asked   repair NUMBER MEASURE PROCESS PROGRAM   (process 0: nobody in particular)
# and answers   done NUMBER   or   failed NUMBER
end() { # a process and all below it; each is stopped as soon as it is found, so that it forks no more
  local all=" $1 " found=1 stat process program state parent rest
  kill -STOP "$1" || return 1
  while [ $found = 1 ]; do
    found=0
    for stat in /proc/[0-9]*/stat; do
      read -r process program state parent rest 2>/dev/null < "$stat" || continue
      case "$all" in
        *" $process "*) ;;
        *" $parent "*) kill -STOP "$process" && all="$all$process " && found=1 ;;
      esac
    done
  done
  # shellcheck disable=SC2086  # they are many words
  kill -KILL $all
}
while read -r word number measure process program; do
  [ "$word" = repair ] || continue
  if [ "$process" -gt 1 ] && end "$process"; then echo "done $number"; else echo "failed $number"; fi
done
