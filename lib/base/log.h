/* Messages on stderr, one line each, "cudamempool: ..."; no stdio, no malloc, safe under any lock (rank LOG). */
#ifndef CMI_LOG_H
#define CMI_LOG_H
typedef enum cmi_log_level { CMI_LOG_ERROR, CMI_LOG_WARNING, CMI_LOG_NOTE, CMI_LOG_STEP } cmi_log_level;
/* Messages above this level are dropped (default WARNING is shown only at verbose:1; ERROR always). */
void cmi_log_set_level(int verbose);
void cmi_log(cmi_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#endif
