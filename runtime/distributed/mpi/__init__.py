"""MPI as a backend of torch.distributed, by mpi4py: torch's wheels are built without MPI.

started        what mpirun tells its processes, handed on in the words of torchrun
buffers        tensors as MPI takes them, and its reductions, of 16 bits too
work           what is under way: one thread for the collectives of a group, requests for messages
process_group  the process group itself, registered with torch as `mpi4py`

Imports mpi4py (the extra `mpi`), and with it MPI's library, which begins MPI: only a rank that mpirun started does.
"""
