/*
 * The door of lib/record: cheap sinks that every layer above writes. Counters, the event ring and the notes on blocks belong to a pool and
 * are written under its device lock; the tables of names and of call stacks are the process's and have locks of their own. Nothing here
 * calls the driver.
 */
#ifndef CMI_RECORD_H
#define CMI_RECORD_H

#include "record/counters.h"
#include "record/notes.h"
#include "record/nvtx.h"
#include "record/ring.h"
#include "record/stacks.h"
#include "record/tags.h"
#include "record/tracer.h"

#endif
