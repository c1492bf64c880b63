/* The functions of workloads.def, one or a few to a file; each sets up, runs its rounds, gives everything back. */
#ifndef BENCH_WORKLOADS_H
#define BENCH_WORKLOADS_H

#include "bench.h"

void bench_pair(bench_run *run);        /* pair.c */
void bench_mix(bench_run *run);         /* mix.c */
void bench_threads(bench_run *run);     /* threads.c */
void bench_processes(bench_run *run);   /* threads.c */
void bench_one_stream(bench_run *run);  /* threads.c */
void bench_handoff(bench_run *run);     /* handoff.c */
void bench_streams(bench_run *run);     /* streams.c */
void bench_record_use(bench_run *run);  /* streams.c */
void bench_cross_free(bench_run *run);  /* streams.c */
void bench_page_moves(bench_run *run);  /* page_moves.c */
void bench_host_memory(bench_run *run); /* host_memory.c */
void bench_replay(bench_run *run);      /* replay.c */

#endif
