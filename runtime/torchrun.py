"""torch's own launcher, `python -m placer.runtime.torchrun`: the kernel ends it with the process that started it."""

from torch.distributed.run import main

from placer.runtime.faults import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    main()
