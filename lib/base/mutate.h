/*
 * Deliberate faults, so that the checkers are checked: tests/mutations/run.py builds the library with each of mutations.def in turn and
 * demands that a test fails. Every other build has none: CMI_MUTATION(name) is the constant 0, no code and no cost. Configure with
 * -DCMPOOL_MUTATION=name to have one in the whole tree.
 */
#ifndef CMI_BASE_MUTATE_H
#define CMI_BASE_MUTATE_H

enum cmi_mutation {
    CMI_MUTANT_NONE,
#define MUTATION(name, orders, what) CMI_MUTANT_##name,
#include "base/mutations.def"
#undef MUTATION
};

#ifndef CMI_MUTATE
#define CMI_MUTATE NONE
#endif
#define CMI_MUTANT_OF(name) CMI_MUTANT_##name
#define CMI_CHOSEN_MUTANT(name) CMI_MUTANT_OF(name)
#define CMI_MUTATION(name) (CMI_MUTANT_##name == CMI_CHOSEN_MUTANT(CMI_MUTATE))

#endif
