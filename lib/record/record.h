/*
 * The door of lib/record: counters and the event ring, cheap sinks that every layer above writes. Both belong to a pool and are
 * written under its device lock; nothing here takes a lock or calls the driver.
 */
#ifndef CMI_RECORD_H
#define CMI_RECORD_H

#include "record/counters.h"
#include "record/ring.h"

#endif
