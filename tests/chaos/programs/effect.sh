# What a step does in the world: `effect.sh LABEL [EXIT_CODE] [SECONDS]`, or the label on stdin as an agent has it.
# One line when it begins, one when it is done, each in one write to the end of the file, so that nothing is lost
# however many write at once and whoever is killed.
label=${1:-$(cat)}
# An owner that is killed in the instant before it says what to do leaves an end of file: nothing was asked for.
[ -n "$label" ] || exit 1
echo "begin $label" >>"$EFFECTS"
sleep "${3:-0.01}"
echo "done $label" >>"$EFFECTS"
echo "$label was done"
exit "${2:-0}"
