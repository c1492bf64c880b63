# The flags of every target of this project: warnings for the whole tree, the rest as the interface target cmpool_options.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# For the tree, so that a target's own -Wno-... comes after them.
add_compile_options(-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla)
if(CMPOOL_WERROR)
    add_compile_options(-Werror)
endif()

add_library(cmpool_options INTERFACE)
target_compile_definitions(cmpool_options INTERFACE _GNU_SOURCE $<$<BOOL:${CMPOOL_VALIDATE}>:CMI_VALIDATE>
    $<$<BOOL:${CMPOOL_MUTATION}>:CMI_MUTATE=${CMPOOL_MUTATION}>)
target_include_directories(cmpool_options INTERFACE ${CMAKE_SOURCE_DIR}/include)
target_link_libraries(cmpool_options INTERFACE Threads::Threads ${CMAKE_DL_LIBS})

set(sanitizers "${CMPOOL_SANITIZE}")
if(CMPOOL_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "CMPOOL_FUZZ needs clang; other compilers build the fuzz targets with a seeded main instead")
    endif()
    target_compile_options(cmpool_options INTERFACE -fsanitize=fuzzer-no-link)
    if(NOT sanitizers)
        set(sanitizers "address,undefined")
    endif()
endif()
if(sanitizers)
    target_compile_options(cmpool_options INTERFACE
        -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
    target_link_options(cmpool_options INTERFACE -fsanitize=${sanitizers})
endif()
# These two follow every access to the heap, so the library's own records must come from there.
if(sanitizers MATCHES "address|thread")
    target_compile_definitions(cmpool_options INTERFACE CMI_META_SYSTEM)
endif()
