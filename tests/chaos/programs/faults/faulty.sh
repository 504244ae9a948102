# Two sides of a fault: `faulty.sh breaks` does $FAULT as soon as the other one runs, `faulty.sh waits` never ends,
# unless the file $FREE says that it was enough.
echo "begin $1" >>"$EFFECTS"
case $1 in
breaks)
    until grep -q "begin waits" "$EFFECTS"; do sleep 0.01; done
    [ -e "$FREE" ] || eval "$FAULT"
    ;;
waits)
    until [ -e "$FREE" ]; do sleep 0.01; done
    ;;
esac
echo "done $1" >>"$EFFECTS"
echo "$1 was done"
