/*
 * The door of lib/base: no CUDA, no policy. Status codes with their thread-local detail, bit tricks, locks with ranks, clock,
 * log, options and metadata memory. Every other room includes this header and nothing else of base.
 */
#ifndef CMI_BASE_H
#define CMI_BASE_H

#include "base/bits.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/latch.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/meta.h"
#include "base/mutate.h"
#include "base/options.h"
#include "base/path.h"
#include "base/thread.h"
#include "base/size.h"

#endif
