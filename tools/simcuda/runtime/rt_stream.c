/*
 * Streams, events, host functions and stream capture: the driver's calls under the runtime's names, each in the form where stream 0 is
 * the legacy stream and in the form where it is the thread's default stream. No state.
 */
#include "runtime/rt.h"

RT_FORWARD(cudaStreamCreate, (CUstream * stream), StreamCreate, (stream, 0))
RT_FORWARD(cudaStreamCreateWithFlags, (CUstream * stream, unsigned int flags), StreamCreate, (stream, flags))
RT_FORWARD(cudaStreamCreateWithPriority, (CUstream * stream, unsigned int flags, int priority), StreamCreateWithPriority,
           (stream, flags, priority))
RT_FORWARD(cudaStreamDestroy, (CUstream stream), StreamDestroy, (stream))

RT_FORWARD_STREAM(cudaStreamQuery, cudaStreamQuery_ptsz, (CUstream stream), StreamQuery, (stream))
RT_FORWARD_STREAM(cudaStreamSynchronize, cudaStreamSynchronize_ptsz, (CUstream stream), StreamSynchronize, (stream))
RT_FORWARD_STREAM(cudaStreamWaitEvent, cudaStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags), StreamWaitEvent,
                  (stream, event, flags))
RT_FORWARD_STREAM(cudaStreamGetId, cudaStreamGetId_ptsz, (CUstream stream, unsigned long long *id), StreamGetId, (stream, id))
RT_FORWARD_STREAM(cudaStreamGetFlags, cudaStreamGetFlags_ptsz, (CUstream stream, unsigned int *flags), StreamGetFlags, (stream, flags))
RT_FORWARD_STREAM(cudaStreamGetPriority, cudaStreamGetPriority_ptsz, (CUstream stream, int *priority), StreamGetPriority,
                  (stream, priority))
RT_FORWARD_STREAM(cudaStreamGetDevice, cudaStreamGetDevice_ptsz, (CUstream stream, int *device), StreamGetDevice, (stream, device))
RT_FORWARD_STREAM(cudaStreamAddCallback, cudaStreamAddCallback_ptsz,
                  (CUstream stream, CUstreamCallback callback, void *argument, unsigned int flags), StreamAddCallback,
                  (stream, callback, argument, flags))
RT_FORWARD_STREAM(cudaLaunchHostFunc, cudaLaunchHostFunc_ptsz, (CUstream stream, CUhostFn function, void *argument), LaunchHostFunc,
                  (stream, function, argument))

RT_FORWARD(cudaEventCreate, (CUevent * event), EventCreate, (event, 0))
RT_FORWARD(cudaEventCreateWithFlags, (CUevent * event, unsigned int flags), EventCreate, (event, flags))
RT_FORWARD(cudaEventDestroy, (CUevent event), EventDestroy, (event))
RT_FORWARD(cudaEventQuery, (CUevent event), EventQuery, (event))
RT_FORWARD(cudaEventSynchronize, (CUevent event), EventSynchronize, (event))
RT_FORWARD(cudaEventElapsedTime, (float *milliseconds, CUevent start, CUevent end), EventElapsedTime, (milliseconds, start, end))
RT_FORWARD_STREAM(cudaEventRecord, cudaEventRecord_ptsz, (CUevent event, CUstream stream), EventRecord, (event, stream))
RT_FORWARD_STREAM(cudaEventRecordWithFlags, cudaEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags),
                  EventRecordWithFlags, (event, stream, flags))
#if SIM_RUNTIME_MAJOR == 12
RT_FORWARD(cudaEventElapsedTime_v2, (float *milliseconds, CUevent start, CUevent end), EventElapsedTime, (milliseconds, start, end))
#endif

RT_FORWARD_STREAM(cudaStreamBeginCapture, cudaStreamBeginCapture_ptsz, (CUstream stream, CUstreamCaptureMode mode), StreamBeginCapture,
                  (stream, mode))
RT_FORWARD_STREAM(cudaStreamBeginCaptureToGraph, cudaStreamBeginCaptureToGraph_ptsz,
                  (CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
                   CUstreamCaptureMode mode),
                  StreamBeginCaptureToGraph, (stream, graph, after, edges, count, mode))
RT_FORWARD_STREAM(cudaStreamEndCapture, cudaStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), StreamEndCapture, (stream, graph))
RT_FORWARD_STREAM(cudaStreamIsCapturing, cudaStreamIsCapturing_ptsz, (CUstream stream, CUstreamCaptureStatus *status), StreamIsCapturing,
                  (stream, status))
RT_FORWARD(cudaThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), ThreadExchangeStreamCaptureMode, (mode))

/* CUDA 12 has three forms of the question, CUDA 13 only the last, under the plain name. */
#define CAPTURE_INFO_PARAMS                                                                                              \
    (CUstream stream, CUstreamCaptureStatus * status, unsigned long long *id, CUgraph *graph, const CUgraphNode **after, \
     const CUgraphEdgeData **edges, size_t *count)
#define CAPTURE_INFO_ARGUMENTS (stream, status, (cuuint64_t *)id, graph, after, edges, count)
#if SIM_RUNTIME_MAJOR == 12
RT_FORWARD(cudaStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus *status, unsigned long long *id), StreamGetCaptureInfo,
           (stream, status, (cuuint64_t *)id, NULL, NULL, NULL, NULL))
RT_FORWARD(cudaStreamGetCaptureInfo_ptsz, (CUstream stream, CUstreamCaptureStatus *status, unsigned long long *id), StreamGetCaptureInfo,
           (rt_per_thread(stream), status, (cuuint64_t *)id, NULL, NULL, NULL, NULL))
#define CAPTURE_INFO_V2_PARAMS \
    (CUstream stream, CUstreamCaptureStatus * status, unsigned long long *id, CUgraph *graph, const CUgraphNode **after, size_t *count)
RT_FORWARD(cudaStreamGetCaptureInfo_v2, CAPTURE_INFO_V2_PARAMS, StreamGetCaptureInfo,
           (stream, status, (cuuint64_t *)id, graph, after, NULL, count))
RT_FORWARD(cudaStreamGetCaptureInfo_v2_ptsz, CAPTURE_INFO_V2_PARAMS, StreamGetCaptureInfo,
           (rt_per_thread(stream), status, (cuuint64_t *)id, graph, after, NULL, count))
RT_FORWARD(cudaStreamGetCaptureInfo_v3, CAPTURE_INFO_PARAMS, StreamGetCaptureInfo, CAPTURE_INFO_ARGUMENTS)
RT_FORWARD(cudaStreamGetCaptureInfo_v3_ptsz, CAPTURE_INFO_PARAMS, StreamGetCaptureInfo,
           (rt_per_thread(stream), status, (cuuint64_t *)id, graph, after, edges, count))
#else
RT_FORWARD(cudaStreamGetCaptureInfo, CAPTURE_INFO_PARAMS, StreamGetCaptureInfo, CAPTURE_INFO_ARGUMENTS)
RT_FORWARD(cudaStreamGetCaptureInfo_ptsz, CAPTURE_INFO_PARAMS, StreamGetCaptureInfo,
           (rt_per_thread(stream), status, (cuuint64_t *)id, graph, after, edges, count))
#endif
