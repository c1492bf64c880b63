# jemalloc, as tools/jemalloc.sh lays it down. Nothing is fetched here: a build needs no network. Without it the library serves small pinned
# blocks from its own heap.

set(CMPOOL_JEMALLOC AUTO CACHE STRING "jemalloc inside the library: AUTO (where tools/jemalloc.sh has laid it down), ON (else an error), OFF")
set(CMPOOL_JEMALLOC_DIR ${PROJECT_SOURCE_DIR}/third_party/jemalloc CACHE PATH "Folder that tools/jemalloc.sh was given")
set(CMPOOL_METADATA OWN CACHE STRING "Host memory of the library's own records: OWN (lib/base/meta.c) or JEMALLOC (see lib/README.md)")

add_library(cmpool_jemalloc INTERFACE)
set(jemalloc_library ${CMPOOL_JEMALLOC_DIR}/lib/libjemalloc_pic.a)
if(CMPOOL_JEMALLOC STREQUAL "OFF")
    message(STATUS "jemalloc: off; small pinned blocks come from the library's own heap")
elseif(EXISTS ${jemalloc_library})
    message(STATUS "jemalloc: ${CMPOOL_JEMALLOC_DIR}")
    target_compile_definitions(cmpool_jemalloc INTERFACE CMI_HAVE_JEMALLOC)
    target_include_directories(cmpool_jemalloc SYSTEM INTERFACE ${CMPOOL_JEMALLOC_DIR}/include)
    # Its names are the library's own business: none is exported.
    target_link_libraries(cmpool_jemalloc INTERFACE ${jemalloc_library})
    target_link_options(cmpool_jemalloc INTERFACE -Wl,--exclude-libs,libjemalloc_pic.a)
    if(CMPOOL_METADATA STREQUAL "JEMALLOC")
        message(STATUS "jemalloc: carries the library's own records too (builds with a sanitizer: the system's allocator)")
        target_compile_definitions(cmpool_jemalloc INTERFACE CMI_META_JEMALLOC)
    endif()
elseif(CMPOOL_JEMALLOC STREQUAL "ON")
    message(FATAL_ERROR "CMPOOL_JEMALLOC is ON, but there is no ${jemalloc_library}; `sh tools/jemalloc.sh` gets it")
else()
    message(STATUS "jemalloc: not there; small pinned blocks come from the library's own heap (`sh tools/jemalloc.sh` gets it)")
endif()
