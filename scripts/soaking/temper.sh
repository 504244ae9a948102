# An agent of the soak: temper.sh "TEMPER STEP WORK_S". It says outside of the journal when it begins and when it is done.
set -f
set -- $1
temper=$1 step=$2 work_s=$3
say() { printf '%s %s %s %s\n' "$1" "$SIDECAR_RUN_ID" "$step" "$$" >>"$SOAK_EFFECTS"; }
say begin
case $temper in
deaf) trap '' TERM INT HUP ;;
slow) trap 'sleep 0.4; exit 143' TERM ;;
forking) # children that hold our stdout open, one of them deaf
    sleep 600 &
    (trap '' TERM HUP; exec sleep 600) &
    ;;
daemonizing) # re-parented, in a session of its own, deaf
    (setsid sh -c 'trap "" TERM HUP; sleep 600' </dev/null >/dev/null 2>&1 &)
    ;;
chatty) yes 'many words, and nobody who reads them' | head -c 100000 ;;
crashing) # at every second attempt; process numbers would decide the same way for ever on a quiet machine
    attempt=$(grep -cF "begin $SIDECAR_RUN_ID $step " "$SOAK_EFFECTS")
    if [ $((attempt % 2)) -eq 1 ]; then
        sleep "$work_s"
        [ $((attempt % 4)) -eq 1 ] && kill -SEGV $$
        exit 7
    fi
    ;;
esac
sleep "$work_s" &
wait $!
say done
