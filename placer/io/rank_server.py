"""The first import of the process that ranks are forked from (`placer.runtime.distributed.torchrun`): it is all that
multiprocessing lets one choose of what that process does. It ends with the launcher, which ranks keep it from noticing:
they inherit the pipe by which it would."""

from placer.io.processes import collect_seldom, die_with_parent

die_with_parent()
collect_seldom()
