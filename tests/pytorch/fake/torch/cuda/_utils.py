def _get_device_index(device):
    return int(device)
